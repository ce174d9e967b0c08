"""Traffic and the states of replicas as messages of the reports.

Rules:

1. The first message of a stream has all series, later ones those that have changed: the receiver
   may be a new process, and knows only what came on this stream.
2. Placement is sent as a whole: when it has changed, at most every ``PLACEMENT_S``, and with the
   traffic, because it has ages. At most ``MAX_ROWS`` rows are sent.
3. All counts are sums (``ext_proc.observability.traffic``). What was counted before the process's
   ``life`` began is not in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate_api.fleet.v1 import report_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ext_proc.control.reporting.watch import ReplicaWatch
    from ext_proc.observability.traffic import EndpointCounts, TrafficCounts, VariantCounts
    from ext_proc.routing.health.placement import Placement
    from ext_proc.routing.values.pool import EndpointKey

PLACEMENT_S: Final = 1.0
MAX_ROWS: Final = 65_536
_MAX_MS: Final = 2**31
_US: Final = 1e6
_LIVES: Final = 2**64
_Key = tuple[str, str]


class Details:
    """The changing parts of the reports on one stream after the other.

    Args:
        traffic: The counts.
        watch: The states of the replicas.
        life: A number that no other process uses, below 2**64.
        clock: Monotonic seconds.
        placement: Which replica has which model; ``None`` = it is not reported.
    """

    def __init__(
        self,
        traffic: TrafficCounts,
        watch: ReplicaWatch,
        life: int,
        clock: Callable[[], float],
        placement: Placement | None = None,
    ) -> None:
        self._placement = placement
        self._placed = -1
        self._placed_at = float("-inf")
        self._traffic = traffic
        self._watch = watch
        self._life = life
        self._clock = clock
        self._generation = traffic.generation
        self._began = clock()
        self._variants: dict[_Key, tuple[int, ...]] = {}
        """What was sent on this stream of each variant, as far as it shows a change."""
        self._endpoints: dict[_Key, int] = {}
        self._seen = -1

    def begin(self) -> None:
        """Begin a new stream: send everything again."""
        self._variants.clear()
        self._endpoints.clear()
        self._seen = self._placed = -1
        self._placed_at = float("-inf")

    @property
    def conditions_changed(self) -> bool:
        """Whether conditions, or models, of any replica changed since the last message."""
        return self._watch.changes != self._seen or self._placement_is_due

    def add(self, report: report_pb2.PickerReport, *, traffic: bool) -> None:
        """Add the states of all replicas and, if it is due, the traffic that has changed."""
        self._seen = self._watch.changes
        report.replicas.replicas.extend(self._watch.states())
        report.replicas.queues.extend(self._watch.queues())
        if traffic:
            self._add_traffic(report.traffic)
        if self._placement is not None and (traffic or self._placement_is_due):
            self._add_placement(self._placement, report.placements)

    @property
    def _placement_is_due(self) -> bool:
        placement = self._placement
        if placement is None or placement.changes == self._placed:
            return False
        return self._clock() - self._placed_at >= PLACEMENT_S

    def _add_placement(self, placement: Placement, message: report_pb2.Placements) -> None:
        now, rows = self._clock(), 0
        self._placed, self._placed_at = placement.changes, now
        message.SetInParent()
        by_key: dict[EndpointKey, report_pb2.ReplicaModels] = {}
        for key in placement.replicas():
            listing = placement.listing(key)
            if listing is not None:
                age_ms = min(max(0, round((now - listing.at) * 1000)), _MAX_MS)
                by_key[key] = message.replicas.add(
                    id=key.id,
                    age_ms=age_ms,
                    whole=listing.whole,
                    moved=placement.moved_at.get(key, 0),
                )
        for placed in placement.table():
            rows += 1
            if rows > MAX_ROWS:
                by_key[placed.key].whole = False
                continue
            model, version, state, reason = placed.row
            by_key[placed.key].models.add(
                model=model,
                version=version,
                state=str(state),
                reason=reason,
                for_ms=max(0, round((now - placed.since) * 1000)),
            )

    def _add_traffic(self, message: report_pb2.Traffic) -> None:
        counts = self._traffic
        if counts.generation != self._generation:
            self._generation, self._began = counts.generation, self._clock()
            self._variants.clear()
            self._endpoints.clear()
        message.life = (self._life + self._generation) % _LIVES
        message.age_seconds = max(0.0, self._clock() - self._began)
        for key, variant in counts.variants.items():
            prompts = variant.prompt_tokens, variant.cached_tokens
            # Of the empty variant the waits that have ended.
            state = (variant.requests, *prompts, 0 if key[1] else sum(variant.duration.values()))
            if self._variants.get(key) != state:
                self._variants[key] = state
                message.variants.append(_variant(key, variant))
        for key, endpoint in counts.endpoints.items():
            if self._endpoints.get(key) != endpoint.requests:
                self._endpoints[key] = endpoint.requests
                message.endpoints.append(_endpoint(key, endpoint))


def _variant(key: _Key, counts: VariantCounts) -> report_pb2.VariantTraffic:
    return report_pb2.VariantTraffic(
        pool=key[0],
        variant=key[1],
        requests=counts.requests,
        failed=counts.failed,
        first_byte=_histogram(counts.first_byte),
        duration=_histogram(counts.duration),
        prompt_tokens=counts.prompt_tokens,
        cached_tokens=counts.cached_tokens,
    )


def _histogram(counts: Mapping[int, int]) -> report_pb2.Histogram | None:
    if not counts:
        return None
    buckets = sorted(counts)
    return report_pb2.Histogram(buckets=buckets, counts=[counts[each] for each in buckets])


def _endpoint(key: _Key, counts: EndpointCounts) -> report_pb2.EndpointTraffic:
    return report_pb2.EndpointTraffic(
        pool=key[0],
        id=key[1],
        requests=counts.requests,
        failed=counts.failed,
        timed=counts.timed,
        timed_us=int(counts.timed_s * _US),
        begun=counts.begun,
        begun_us=int(counts.begun_s * _US),
    )
