"""The state of the whole for operators: the verdict, pools, replicas and traffic as messages."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from tidegate_api.admin.v1 import admin_pb2
from xds_server.admin.answers.copied import copied
from xds_server.admin.views.remaining import remaining
from xds_server.applications.traffic.book import LONG_S, RecentTraffic
from xds_server.applications.traffic.placements import VersionedReplica, shown, unlike_versions
from xds_server.applications.traffic.replicas import STALE_S, UNKNOWN, noted, words
from xds_server.applications.traffic.request_counts import NOTHING, RequestCounts, added, since
from xds_server.applications.traffic.verdict import (
    KINDS,
    ClientState,
    NoteView,
    PoolView,
    ReplicaView,
    Situation,
    VariantView,
    verdict,
)
from xds_server.fleet.diff import diff
from xds_server.observability import Assessment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from xds_server.applications.discovery.membership import Membership
    from xds_server.applications.traffic.book import TrafficBook
    from xds_server.applications.traffic.picker_runs import Key
    from xds_server.applications.traffic.placements import PlacementBook
    from xds_server.applications.traffic.replicas import ReplicaBook, State
    from xds_server.applications.traffic.verdict import CertificateState, Verdict
    from xds_server.control.ads import ClientDirectory
    from xds_server.control.fleet_control import Control
    from xds_server.fleet.model.fleet import EndpointSpec, PoolSpec
    from xds_server.protocol.messages import ClientView
    from xds_server.snapshots.preview import Preview

MAX_DRIFT: Final = 50
"""Most lines of the drift in an answer."""
_CONDITION: Final = admin_pb2.ReplicaCondition
LET_IN_S: Final = 5.0
"""What pickers still hold against a replica is no reason for so long after its drain has ended:
they look at it once a second, and it was true while it was restarted."""
_WANTING: Final = frozenset(
    {
        *("saturated", "queue-full", "deadline-unmet", "no-endpoints", "wrong-version"),
        *("suspect-waits", "unplaced", "no-pick"),
        # Envoy's own, as pickers count them.
        *("rate-limited", "overflow", "overloaded", "no-healthy-upstream", "no-cluster"),
        *("timeout", "unreached", "broken", "local"),
    }
)
"""Reasons of refusals that callers are not to blame for."""


def known_names(control: Control) -> tuple[set[Key], set[Key]]:
    """Return the variants and endpoints of the fleet in force, as the traffic book wants them."""
    variants: set[Key] = set()
    endpoints: set[Key] = set()
    for pool in control.fleet.pools if control.revision else ():
        variants.add((pool.name, ""))
        variants.update((pool.name, each.name) for each in pool.variants)
        endpoints.update((pool.name, each.id) for each in pool.endpoints)
    return variants, endpoints


class StatusBoard:
    """What the control server knows of the whole.

    Args:
        control: The fleet in force.
        observed: State of the clients.
        traffic: What became of requests.
        replicas: States of the replicas.
        placements: Which replica has which model.
        found: What was found, and by which sources.
        passed: Returns the requests of the last minute without a pick, by reason.
        certificates: Returns the certificates to care about.
        audit_error: Returns why the record of calls cannot be written; empty if it can.
        relief: Returns what pickers leave out whose CPU does not suffice.
        missing: Returns which members of their group pickers miss.
        lost: Returns which history is lost; empty = none.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        control: Control,
        observed: ClientDirectory,
        traffic: TrafficBook,
        replicas: ReplicaBook,
        placements: PlacementBook,
        found: Membership | None = None,
        passed: Callable[[], Mapping[str, int]] = dict,
        certificates: Callable[[], Sequence[CertificateState]] = tuple,
        audit_error: Callable[[], str] = str,
        relief: Callable[[], Mapping[str, int]] = dict,
        missing: Callable[[], Mapping[str, Sequence[str]]] = dict,
        lost: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._drained: dict[Key, float] = {}
        """When each replica was last seen to drain, for ``LET_IN_S``."""
        self._audit_error, self._lost = audit_error, lost
        self._relief, self._missing = relief, missing
        self._passed = passed
        self._certificates = certificates
        self._control = control
        self._observed = observed
        self._traffic = traffic
        self._replicas = replicas
        self._placements = placements
        self._found = found
        self.canaries: Callable[[], Sequence[str]] = tuple
        """Returns the rollouts that run, each in one line."""
        self._unlike: tuple[object, object, list[str]] = (None, None, [])
        """What ``_versions`` has found last, and of what."""

    def fill(self, answer: admin_pb2.GetStatusResponse) -> None:
        """Add verdict, pools and drift to an answer."""
        if not self._control.revision:
            return
        states = self._replicas.merged()
        answer.reports.update(self._replicas.ages())
        for pool in self._control.fleet.pools:
            answer.pools.append(self._pool(pool, states))
        found = verdict(self._situation(states))
        answer.verdict, answer.why = str(found.word), found.why
        answer.reasons.extend(found.reasons)
        answer.drift.extend(self._drift())
        answer.canaries.extend(self.canaries())

    def verdict(self) -> Verdict | None:
        """Return the verdict; ``None`` before there is a fleet."""
        if not self._control.revision:
            return None
        return verdict(self._situation(self._replicas.merged()))

    def level(self) -> int:
        """Return the level of the verdict; 0 before there is a fleet."""
        return self.judged().level

    def judged(self) -> Assessment:
        """Return the verdict, its reasons and the replicas, for metrics."""
        if not self._control.revision:
            return Assessment(0, dict.fromkeys(KINDS, 0))
        seen = self._situation(self._replicas.merged())
        found = verdict(seen)
        return Assessment(
            found.level,
            {kind: len(found.kinds.get(kind, ())) for kind in KINDS},
            [
                (pool.name, each.name, each.replicas, each.usable)
                for pool in seen.pools
                for each in pool.variants
            ],
        )

    def replicas(self, only: str) -> Iterator[admin_pb2.ReplicaStatus]:
        """Yield the state of each replica; ``only`` = of this pool, empty = of all."""
        if not self._control.revision:
            return
        states, loads = self._replicas.merged(), self._loads()
        counted = any(age_s <= STALE_S for age_s in self._replicas.ages().values())
        for pool in self._control.fleet.pools:
            if only and pool.name != only:
                continue
            held = self._held(pool.name)
            recent = {
                each.id: self._traffic.endpoint(pool.name, each.id) for each in pool.endpoints
            }
            variants: dict[str, RequestCounts] = {}
            for endpoint in pool.endpoints:
                variant = pool.variant_of(endpoint)
                sums = recent[endpoint.id].sums
                variants[variant] = added(variants.get(variant, NOTHING), sums)
            for endpoint in pool.endpoints:
                state = states.get((pool.name, endpoint.id), UNKNOWN)
                rates, variant = recent[endpoint.id], pool.variant_of(endpoint)
                yield admin_pb2.ReplicaStatus(
                    pool=pool.name,
                    endpoint=endpoint.id,
                    variant=variant,
                    state=self._words(endpoint, state, loads, held),
                    usable=_usable(endpoint, state),
                    conditions=[copied(_CONDITION, each) for each in state.conditions],
                    notes=[copied(_CONDITION, each) for each in state.notes],
                    age_seconds=state.reading_age_s,
                    in_flight=None if loads is None else loads.get(endpoint.id, 0),
                    ramp_percent=state.ramp_percent,
                    pickers=state.pickers,
                    requests=rates.sums.requests,
                    errors=rates.failed,
                    counted=counted,
                    minute=_times(rates.sums),
                    peers=_times(since(variants[variant], rates.sums)),
                    hour=_times(self._traffic.hour(pool.name, endpoint.id)),
                    limits=[admin_pb2.RequestLimit(**each._asdict()) for each in state.limits],
                )

    def models(self, only: str) -> Iterator[admin_pb2.PlacedModel]:
        """Yield which replica has which model; ``only`` = of this pool, empty = of all."""
        replicas = self._placements.merged()
        for pool in self._control.fleet.pools if self._control.revision else ():
            if only and pool.name != only:
                continue
            ids = [each.id for each in pool.endpoints]
            for each in shown(replicas, ids, pool.match.models):
                yield copied(
                    admin_pb2.PlacedModel,
                    each,
                    pool=pool.name,
                    state=each.state.state,
                    reason=each.state.reason,
                    for_seconds=each.state.for_s,
                )

    def minutes(self, only: str) -> Iterator[admin_pb2.TrafficMinute]:
        """Yield the minutes of the last hour; ``only`` = of this pool, empty = of all."""
        for (pool, variant), age_s, sums in self._traffic.history(only):
            rates = RecentTraffic(sums, LONG_S)
            yield admin_pb2.TrafficMinute(
                pool=pool,
                variant=variant,
                age_seconds=age_s,
                **_counts(rates),
            )

    def preview(self, found: Preview) -> admin_pb2.ChangePreview:
        """Return what a change would do."""
        states, loads = self._replicas.merged(), self._loads()

        def usable(pool: str, endpoint: EndpointSpec) -> bool:
            return not states.get((pool, endpoint.id), UNKNOWN).left_alone

        return admin_pb2.ChangePreview(
            channels=found.channels,
            drains=found.drains,
            warms=found.warms,
            draining=[
                admin_pb2.DrainingReplica(
                    endpoint=each, in_flight=None if loads is None else loads.get(each, 0)
                )
                for each in found.draining
            ],
            remaining=[
                admin_pb2.RemainingCapacity(**each._asdict())
                for each in remaining(found.before, found.after, usable)
            ],
        )

    # --- Parts ------------------------------------------------------------------------------------

    def _pool(self, pool: PoolSpec, states: Mapping[Key, State]) -> admin_pb2.PoolStatus:
        whole = self._traffic.variant(pool.name, "")
        waiting, known = self._replicas.waiting(pool.name), bool(self._replicas.ages())
        answer = admin_pb2.PoolStatus(
            pool=pool.name,
            refused=whole.sums.failed,
            waiting=waiting.requests if known else None,
            wait_seconds=waiting.wait_s,
            queued=sum(whole.sums.duration.values()),
            queued_p50=whole.duration_s(0.5),
            queued_p99=whole.duration_s(0.99),
        )
        for view in _variants(pool, states):
            rates = self._traffic.variant(pool.name, view.name)
            answer.variants.add(
                variant=view.name,
                weight=view.weight,
                replicas=view.replicas,
                usable=view.usable,
                seconds=rates.seconds,
                **_counts(rates),
            )
        return answer

    def _situation(self, states: Mapping[Key, State]) -> Situation:
        control, found = self._control, self._found
        pools, sick, notes = [], [], []
        loads, now = self._loads(), self._clock()
        drained, self._drained = self._drained, {}
        for pool in control.fleet.pools:
            pools.append(self._view(pool, states))
            for endpoint in pool.endpoints:
                key = pool.name, endpoint.id
                state, at = states.get(key, UNKNOWN), drained.get(key)
                if endpoint.draining or (at is not None and now - at < LET_IN_S):
                    self._drained[key] = now if at is None or endpoint.draining else at
                elif state.conditions:
                    said = self._words(endpoint, state, loads, frozenset())
                    sick.append(ReplicaView(pool.name, endpoint.id, said, state.left_alone))
                notes += [
                    NoteView(each.name, pool.name, endpoint.id, noted(each))
                    for each in (() if endpoint.draining else state.notes)
                ]
        nowhere = self._refused("")
        if nowhere:
            pools.append(PoolView("", (), 0, 0, sum(nowhere.values()), reasons=nowhere))
        return Situation(
            pools,
            sick,
            [_client(each) for each in self._observed.clients()],
            control.file_error,
            control.refusal,
            control.journal.fault,
            ()
            if found is None
            else [f"pool {e.pool}: {e.source}: {e.trouble}" for e in found.sources() if e.trouble],
            ()
            if found is None
            else [
                f"pool {each.pool}: {len(each.hold.ids)} of {each.hold.of} replicas have vanished"
                f" and stay; tidegate confirm {each.pool} lets them go"
                for each in found.pools()
                if each.hold is not None
            ],
            len(control.fleet.pickers.addresses),
            self._passed(),
            self._certificates(),
            self._versions(),
            self._audit_error(),
            self._replicas.ages(),
            notes,
            self._relief(),
            self._missing(),
            self._lost(),
        )

    def _versions(self) -> list[str]:
        """Return in words which replicas answer by another version than they should."""
        known, found = self._placements.merged(), list[str]()
        fleet = self._control.fleet
        state = self._placements.changes, tuple(known)
        if self._unlike[0] is fleet and self._unlike[1] == state:
            return self._unlike[2]
        for pool in fleet.pools if known else ():
            here: dict[str, list[VersionedReplica]] = {}
            for each in pool.endpoints:
                if each.id in known and not each.draining:
                    one = VersionedReplica(each.id, each.grpc is not None, known[each.id])
                    here.setdefault(pool.variant_of(each), []).append(one)
            for variant in pool.variants:
                where = f"pool {pool.name}, variant {variant.name}"
                replicas = here.get(variant.name, ())
                found += unlike_versions(where, variant.model_version, replicas, pool.match.models)
        self._unlike = fleet, state, found
        return found

    def _view(self, pool: PoolSpec, states: Mapping[Key, State]) -> PoolView:
        variants = _variants(pool, states)
        rates = [self._traffic.variant(pool.name, each.name) for each in variants]
        refused = self._refused(pool.name)
        failed = sum(each.failed for each in rates)
        failing = {}
        for endpoint in pool.endpoints if failed else ():
            count = self._traffic.endpoint(pool.name, endpoint.id).failed
            if count:
                failing[f"{endpoint.id} ({pool.variant_of(endpoint)})"] = count
        return PoolView(
            pool.name,
            variants,
            sum(each.sums.requests for each in rates),
            failed,
            sum(refused.values()),
            failing,
            refused,
            sum(each.gave_up for each in rates),
            self._traffic.variant(pool.name, "").sums.failed.get("deadline-passed", 0),
        )

    def _refused(self, pool: str) -> Mapping[str, int]:
        """Return the requests of the last minute that were refused for want of service."""
        sums = self._traffic.variant(pool, "").sums
        return {reason: count for reason, count in sums.failed.items() if reason in _WANTING}

    def _words(
        self,
        endpoint: EndpointSpec,
        state: State,
        loads: Mapping[str, int] | None,
        held: frozenset[str],
    ) -> str:
        if endpoint.standby and endpoint.draining:
            return "standby"
        return words(
            state,
            draining=endpoint.draining,
            held=endpoint.id in held,
            in_flight=None if loads is None else loads.get(endpoint.id, 0),
        )

    def _loads(self) -> Mapping[str, int] | None:
        """Return the requests in flight by endpoint; ``None`` = no picker is connected."""
        pickers = any(each.kind == "picker" for each in self._observed.clients())
        return self._observed.in_flight() if pickers else None

    def _held(self, pool: str) -> frozenset[str]:
        for each in () if self._found is None else self._found.pools():
            if each.pool == pool and each.hold is not None:
                return frozenset(each.hold.ids)
        return frozenset()

    def _drift(self) -> Sequence[str]:
        file = self._control.file
        if file is None:
            return ()
        lines = diff(file.fleet, self._control.written)
        more = len(lines) - MAX_DRIFT
        return (*lines[:MAX_DRIFT], f"... and {more} more") if more > 0 else lines


def _variants(pool: PoolSpec, states: Mapping[Key, State]) -> list[VariantView]:
    sizes: dict[str, int] = {}
    usable: dict[str, int] = {}
    for endpoint in pool.endpoints:
        name = pool.variant_of(endpoint)
        if endpoint.standby and endpoint.draining:
            continue
        sizes[name] = sizes.get(name, 0) + 1
        if _usable(endpoint, states.get((pool.name, endpoint.id), UNKNOWN)):
            usable[name] = usable.get(name, 0) + 1
    return [
        VariantView(each.name, each.weight, sizes.get(each.name, 0), usable.get(each.name, 0))
        for each in pool.variants
    ]


def _counts(rates: RecentTraffic) -> dict[str, Any]:
    """Return what the messages of variants and of minutes tell of requests."""
    sums = rates.sums
    return {
        "requests": sums.requests,
        "failed": sums.failed,
        "errors": rates.failed,
        "first_byte_p50": rates.first_byte_s(0.5),
        "first_byte_p99": rates.first_byte_s(0.99),
        "duration_p50": rates.duration_s(0.5),
        "duration_p99": rates.duration_s(0.99),
        "prompt_tokens": sums.prompt_tokens,
        "cached_tokens": sums.cached_tokens,
    }


def _times(sums: RequestCounts) -> admin_pb2.RequestTimes | None:
    """Return the means of an endpoint's requests; ``None`` = there were none."""
    mean = sums.duration_s
    if mean is None:
        return None
    return admin_pb2.RequestTimes(requests=sums.timed, duration=mean, first_byte=sums.first_byte_s)


def _usable(endpoint: EndpointSpec, state: State) -> bool:
    return not endpoint.draining and not state.left_alone


def _client(client: ClientView) -> ClientState:
    rejects = next((each.short for each in client.types if each.state == "NACKED"), "")
    late = max((each.pending_s for each in client.types if each.state == "STALE"), default=0.0)
    return ClientState(client.node, client.kind, rejects, late, client.quarantine)
