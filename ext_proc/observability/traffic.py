"""Sums and histograms that are updated on the path of requests. Pure.

``counts`` exposes the series to Prometheus; what became of requests, by variant and endpoint, goes
to the control server.

Rules:

1. One thread writes and reads, so there are no locks. On the path of a request a count is a look-up
   and an addition. Names are resolved once for each pair of cluster and address, until the pools
   change.
2. A counter holds at most ``MAX_SERIES`` label sets; further ones count under ``other``.
3. Counts are sums and never fall, so they may be sent again and need no acknowledgement. Those for
   the control server begin anew, all at once and as another ``generation``, where series of pools
   that are gone fill half of the bounds.
4. At most ``MAX_VARIANTS`` variants and ``MAX_ENDPOINTS`` endpoints are counted, and ``MAX_PLACES``
   pairs resolved; more are left out.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

from tidegate_common.histogram import bucket_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ext_proc.exchange import Pick
    from ext_proc.routing.registry import EndpointRegistry


MAX_SERIES: Final = 1_000
"""Maximum label sets of one metric."""
ALL: Final = ("all",)
MATCHED: Final = ("matched",)


class Series:
    """Sums by label values.

    Args:
        labels: Number of labels.
        known: Label sets that exist from the start.
    """

    __slots__ = ("_other", "values")

    def __init__(self, labels: int, known: Sequence[tuple[str, ...]] = ()) -> None:
        self._other = ("other",) * labels
        self.values: dict[tuple[str, ...], float] = dict.fromkeys(known, 0)

    def add(self, labels: tuple[str, ...], by: float = 1) -> None:
        """Add to the series of these label values."""
        values = self.values
        before = values.get(labels)
        if before is not None:
            values[labels] = before + by
        elif len(values) < MAX_SERIES:
            values[labels] = by
        else:
            values[self._other] = values.get(self._other, 0) + by


class Spread:
    """A histogram of durations per part.

    Args:
        parts: All parts.
        bounds: Upper bounds of the buckets, ascending; the last bucket is unbounded.
    """

    __slots__ = ("bounds", "counts", "sums")

    def __init__(self, parts: Sequence[str], bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = {part: [0] * (len(self.bounds) + 1) for part in parts}
        self.sums = dict.fromkeys(parts, 0.0)

    def observe(self, part: str, seconds: float) -> None:
        """Count one duration."""
        self.counts[part][bisect_left(self.bounds, seconds)] += 1
        self.sums[part] += seconds


class Picks:
    """The counters of picks.

    Args:
        picks: Picks by pool, variant and reason.
        tokens: Estimated prompt tokens, `ALL` and `MATCHED`.
        blocks: Prompt blocks, `ALL` and `MATCHED`.
        prompts: Estimated prompt tokens by endpoint.
        predicted: The part of them that the endpoint was predicted to have cached.
        traffic: Counts prompts by variant.
    """

    __slots__ = ("_blocks", "_picks", "_predicted", "_prompts", "_tokens", "_traffic")

    def __init__(
        self,
        picks: Series,
        tokens: Series,
        blocks: Series,
        prompts: Series,
        predicted: Series,
        traffic: TrafficCounts,
    ) -> None:
        self._traffic = traffic
        self._picks = picks
        self._tokens = tokens
        self._blocks = blocks
        self._prompts = prompts
        self._predicted = predicted

    def count(self, pick: Pick) -> None:
        """Count a pick."""
        decision, tokens = pick.decision, pick.prompt_tokens
        self._picks.add((decision.pool, decision.variant, decision.reason))
        if tokens is None:
            return
        matched = min(pick.matched_tokens, tokens)
        values = self._tokens.values  # these series exist from the start
        values[ALL] += tokens
        values[MATCHED] += matched
        values = self._blocks.values
        values[ALL] += pick.prompt_blocks
        values[MATCHED] += decision.matched_blocks
        self._traffic.picked(decision.pool, decision.variant, tokens, matched)
        if decision.ticket is not None:
            endpoint = (decision.ticket.endpoint.id,)
            self._prompts.add(endpoint, tokens)
            self._predicted.add(endpoint, matched)


MAX_VARIANTS: Final = 1024
MAX_ENDPOINTS: Final = 16_384
MAX_PLACES: Final = 65_536
GOOD: Final = "good"
LEFT: Final = "left"
GAVE_UP: Final = "gave-up"
"""The caller left before the first byte of an answer; ``left`` is then one that left later."""
FAILURES: Final = frozenset({"error", "broken", "unreached", "timeout", "local"})
"""Outcomes that are failures of the service; callers' mistakes and leaving are not."""


class VariantCounts:
    """The counts of one variant."""

    __slots__ = (
        "cached_tokens",
        "duration",
        "failed",
        "first_byte",
        "prompt_tokens",
        "requests",
    )

    def __init__(self) -> None:
        self.requests = 0
        self.failed: dict[str, int] = {}
        """Requests that did not end well, by outcome."""
        self.first_byte: dict[int, int] = {}
        """Requests by bucket of the time from their start to the first byte."""
        self.duration: dict[int, int] = {}
        """Requests by bucket of the time from their start to their end; of the empty variant, those
        that waited in the picker, by bucket of their wait."""
        self.prompt_tokens = 0
        self.cached_tokens = 0


class EndpointCounts:
    """The counts of one endpoint in one pool."""

    __slots__ = ("begun", "begun_s", "failed", "requests", "timed", "timed_s")

    def __init__(self) -> None:
        self.requests = 0
        self.failed = 0
        self.timed = 0
        """Requests that ended well."""
        self.timed_s = 0.0
        """Seconds that these took in all."""
        self.begun = 0
        """Those of them whose first byte's time is known."""
        self.begun_s = 0.0
        """Seconds to these first bytes in all."""


class Resolved(NamedTuple):
    """What a cluster and an address stand for."""

    pool: str
    variant: str
    endpoint: str | None
    """``None`` = the request was sent to none, or to one that is not in the pool."""


class TrafficCounts:
    """The counts of all pools; see the module's rules.

    Args:
        resolve: Returns the variant and the endpoint of a cluster's name and an ``ip:port``;
            ``None`` = no pool has this name.
    """

    def __init__(
        self, resolve: Callable[[str, str | None], Resolved | None] = lambda *_: None
    ) -> None:
        self._resolve = resolve
        self._places: dict[
            tuple[str, str | None], tuple[VariantCounts | None, EndpointCounts | None]
        ] = {}
        self.generation = 0
        """Number of times that the counts began anew."""
        self.variants: dict[tuple[str, str], VariantCounts] = {}
        """By pool and variant; with an empty variant, what was refused before it was known."""
        self.endpoints: dict[tuple[str, str], EndpointCounts] = {}
        """By pool and endpoint id."""

    def set_pools(self, pools: Mapping[str, object]) -> None:
        """Forget the pairs that were resolved; begin anew where too much is counted (rule 3)."""
        self._places.clear()
        gone = any(pool and pool not in pools for pool, _ in (*self.variants, *self.endpoints))
        many = 2 * len(self.variants) > MAX_VARIANTS or 2 * len(self.endpoints) > MAX_ENDPOINTS
        if gone and many:
            self.variants.clear()
            self.endpoints.clear()
            self.generation += 1

    def ended(
        self,
        cluster: str,
        served: str | None,
        outcome: str,
        first_byte_s: float | None,
        lasted_s: float,
    ) -> None:
        """Count a request that has ended.

        Args:
            cluster: The cluster that the proxy used.
            served: ``ip:port`` of the replica that served it; ``None`` = none.
            outcome: How it ended, as the law of blame calls it.
            first_byte_s: Seconds from its start to the first byte of its answer, if known.
            lasted_s: Seconds from its start to its end.
        """
        place = self._places.get((cluster, served))
        if place is None:
            place = self._place(cluster, served)
        variant, endpoint = place
        if variant is None:
            return
        variant.requests += 1
        bucket = bucket_of(lasted_s)
        variant.duration[bucket] = variant.duration.get(bucket, 0) + 1
        if first_byte_s is not None:
            bucket = bucket_of(first_byte_s)
            variant.first_byte[bucket] = variant.first_byte.get(bucket, 0) + 1
        if outcome != GOOD:
            kind = GAVE_UP if outcome == LEFT and first_byte_s is None else outcome
            variant.failed[kind] = variant.failed.get(kind, 0) + 1
        if endpoint is not None:
            endpoint.requests += 1
            if outcome == GOOD:
                endpoint.timed += 1
                endpoint.timed_s += lasted_s
                if first_byte_s is not None:
                    endpoint.begun += 1
                    endpoint.begun_s += first_byte_s
            elif outcome in FAILURES:
                endpoint.failed += 1

    def picked(self, pool: str, variant: str, prompt_tokens: int, cached_tokens: int) -> None:
        """Count the prompt of a picked request, in tokens."""
        counts = self.variants.get((pool, variant)) or self._variant(pool, variant)
        if counts is not None:
            counts.prompt_tokens += prompt_tokens
            counts.cached_tokens += cached_tokens

    def refused(self, pool: str, reason: str) -> None:
        """Count a request that the picker refused, or the proxy without asking a replica.

        Args:
            pool: Its pool; empty where it is not known.
            reason: The refusal's reason, or the cause that the proxy gives.
        """
        counts = self._variant(pool, "")
        if counts is not None:
            counts.requests += 1
            counts.failed[reason] = counts.failed.get(reason, 0) + 1

    def queued(self, pool: str, waited_s: float) -> None:
        """Count a request of a pool that waited in the picker, however the wait ended."""
        counts = self._variant(pool, "")
        if counts is not None:
            bucket = bucket_of(waited_s)
            counts.duration[bucket] = counts.duration.get(bucket, 0) + 1

    def _place(
        self, cluster: str, served: str | None
    ) -> tuple[VariantCounts | None, EndpointCounts | None]:
        found = self._resolve(cluster, served)
        if found is None:
            return None, None
        endpoint = None if found.endpoint is None else self._endpoint(found.pool, found.endpoint)
        place = self._variant(found.pool, found.variant), endpoint
        if len(self._places) < MAX_PLACES:
            self._places[cluster, served] = place
        return place

    def _variant(self, pool: str, variant: str) -> VariantCounts | None:
        counts = self.variants.get((pool, variant))
        if counts is None and len(self.variants) < MAX_VARIANTS:
            counts = self.variants[pool, variant] = VariantCounts()
        return counts

    def _endpoint(self, pool: str, endpoint: str) -> EndpointCounts | None:
        counts = self.endpoints.get((pool, endpoint))
        if counts is None and len(self.endpoints) < MAX_ENDPOINTS:
            counts = self.endpoints[pool, endpoint] = EndpointCounts()
        return counts


class Places:
    """Finds variants and endpoints of the pools in force.

    Args:
        registry: The pools and their replicas.
    """

    def __init__(self, registry: EndpointRegistry) -> None:
        self._registry = registry

    def find(self, cluster: str, served: str | None) -> Resolved | None:
        """Return what a cluster (``pool/variant/protocol``, or the pool) and an address stand for.

        ``None`` = no pool has this name. The variant of an endpoint of the pool is the endpoint's.
        """
        name, _, rest = cluster.partition("/")
        pool = self._registry.pools.get(name)
        if pool is None:
            return None
        key = None if served is None else self._registry.at(name, served)
        for endpoint in pool.endpoints if key is not None else ():
            if endpoint.key == key:
                return Resolved(name, endpoint.variant, endpoint.key.id)
        variant = rest.partition("/")[0]
        known = any(each.name == variant for each in pool.variants)
        return Resolved(name, variant if known else "", None)
