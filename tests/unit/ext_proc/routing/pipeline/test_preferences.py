"""Constraints remove replicas, preferences order them."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.latency.model import FleetLatencyModel, LatencyModel
from ext_proc.routing.pipeline.filters import MEMORY_FRESH_S, adapter_grade
from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.state.candidates import Candidate, Replica
from ext_proc.routing.state.ledger import Load
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Variant
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from ext_proc.routing.values.settings import ModelNeeds
from ext_proc.routing.values.ticket import Outcome
from tidegate_api.pools import AdapterMode

if TYPE_CHECKING:
    from ext_proc.routing.router import Router
    from ext_proc.routing.values.pool import Pool

    from .conftest import Build

GIB = 2**30


def zoned(build: Build, zones: str, **changes: Any) -> Pool:
    """Return a pool with one endpoint per letter; the letter is its zone."""
    endpoints = tuple(build.endpoint(number, zone=zone) for number, zone in enumerate(zones))
    return build.pool(endpoints=endpoints, **{"prefer_zone": True, **changes})


def ask(router: Router, build: Build, now: float = 0.0, **changes: Any) -> str:
    """Decide one request and return the id of the pick."""
    decision = router.decide(build.request(**changes), now, 0.0)
    assert isinstance(decision, Decision), decision
    assert decision.ticket is not None
    return decision.ticket.endpoint.id


def refused(router: Router, build: Build, **changes: Any) -> Refusal:
    """Decide one request that no replica can serve; return the refusal."""
    refusal = router.decide(build.request(**changes), 0.0, 0.0)
    assert isinstance(refusal, Refusal)
    assert len(router.ledger) == 0
    return refusal


def test_a_required_device_is_the_only_one(build: Build) -> None:
    """It is used at any load; other models may use other devices."""
    endpoints = (build.endpoint(0, device="a100"), build.endpoint(1, device="t4"))
    pool = build.pool(
        endpoints=endpoints, model_needs=(ModelNeeds("m", device="a100", device_required=True),)
    )
    router = build.router(pool)
    assert {ask(router, build) for _ in range(20)} == {"r0"}
    assert ask(router, build, model="other") == "r1"


def test_a_missing_device_is_refused(build: Build) -> None:
    """The refusal names what is missing."""
    needs = (ModelNeeds("m", device="a100", device_required=True),)
    refusal = refused(build.router(build.pool(2, model_needs=needs)), build)
    assert refusal.kind is RefusalKind.NO_ENDPOINTS
    assert "the device that model 'm' requires" in refusal.message


def test_a_preferred_device_spills_when_full(build: Build) -> None:
    """Two requests always fit; then other devices take some."""
    endpoints = (build.endpoint(0, device="a100"), build.endpoint(1), build.endpoint(2))
    pool = build.pool(endpoints=endpoints, model_needs=(ModelNeeds("m", device="a100"),))
    router = build.router(pool)
    picks = [ask(router, build) for _ in range(9)]
    assert picks[:2] == ["r0", "r0"]
    assert picks.count("r0") == ceil(1.5 * 9 / 3)


@pytest.mark.parametrize(
    ("readings", "kept"),
    [
        ([], True),
        ([Reading(at=0.0, gpu_memory_free=1.0)], True),
        ([Reading(at=0.0, model="x")], True),
        ([Reading(at=0.0, model="x"), Reading(at=0.0, gpu_memory_free=3 * GIB)], True),
        ([Reading(at=0.0, model="m"), Reading(at=0.0, gpu_memory_free=1.0)], True),
        ([Reading(at=0.0, model="x"), Reading(at=0.0, gpu_memory_free=1 * GIB)], False),
        (
            [
                Reading(at=-MEMORY_FRESH_S, model="x"),
                Reading(at=-MEMORY_FRESH_S, gpu_memory_free=1.0),
            ],
            True,
        ),
    ],
)
def test_memory_removes_only_replicas_that_surely_lack_it(
    build: Build, readings: list[Reading], kept: bool
) -> None:
    """Unknown or stale readings remove no replica, and neither does a model that is loaded."""
    pool = build.pool(2, model_needs=(ModelNeeds("m", memory_bytes=2 * GIB),))
    router = build.router(pool)
    router.registry.observe("r0", readings)
    assert ("r0" in {ask(router, build) for _ in range(4)}) is kept


def test_a_wanted_adapter_is_preferred(build: Build) -> None:
    """It is declared or in a fresh reading; requests without an adapter go anywhere."""
    endpoints = (build.endpoint(0), build.endpoint(1, adapters=frozenset({"fr"})))
    for pool, reported in ((build.pool(endpoints=endpoints), False), (build.pool(2), True)):
        router = build.router(pool)
        if reported:
            router.registry.observe("r1", [Reading(at=0.0, adapters=frozenset({"fr"}))])
        assert [ask(router, build, adapter="fr") for _ in range(2)] == ["r1", "r1"]
        assert ask(router, build) == "r0"


def lora(running: str, waiting: str, slots: int | None, at: float = 0.0) -> Reading:
    """Return a reading; each letter is an adapter."""
    adapters = frozenset(running + waiting)
    return Reading(
        at=at,
        adapters=adapters,
        adapters_waiting=frozenset(waiting) - frozenset(running),
        adapter_slots=slots,
    )


def test_an_adapter_goes_where_it_runs_then_to_room_then_to_where_it_waits(build: Build) -> None:
    """Each further step costs more: nothing, a load, a load after a wait, another's place."""
    readings = [lora("xy", "", 2), lora("xy", "a", 2), lora("x", "", 2), lora("ax", "", 2)]
    router = build.router(build.pool(4, fallbacks=3))
    for number, each in enumerate(readings):
        router.registry.observe(f"r{number}", [each])
    decision = router.decide(build.request(adapter="a"), 0.0, 0.0)
    assert isinstance(decision, Decision)
    assert [address[7] for address in decision.addresses] == ["3", "2", "1", "0"]


def test_a_model_that_a_replica_calls_an_adapter_is_one(build: Build) -> None:
    """Clients of vLLM name an adapter as a model; other models of the pool go anywhere."""
    pool = build.pool(2, models=frozenset({"m", "a"}))
    router = build.router(pool)
    router.registry.observe("r1", [lora("a", "", 2)])
    assert [ask(router, build, model="a") for _ in range(2)] == ["r1", "r1"]
    assert ask(router, build, model="m") == "r0"


@given(
    running=st.sets(st.sampled_from("abc")),
    waiting=st.sets(st.sampled_from("abc")),
    slots=st.none() | st.integers(1, 4),
)
def test_the_grade_of_an_adapter_follows_from_the_reading(
    running: set[str], waiting: set[str], slots: int | None
) -> None:
    """Running counts more than room, room more than waiting; a stale reading says nothing."""
    reading = lora("".join(running), "".join(waiting), slots)
    endpoint = Endpoint(EndpointKey("r0", 1), "stable", "10.0.0.1:80", None)
    replica = Replica(endpoint.key, Load())
    replica.readings = (reading,)
    model = LatencyModel(FleetLatencyModel(), 1.0)
    candidate = Candidate(endpoint, "10.0.0.1:80", replica, 0, model)
    expected = 1 if "a" in waiting else 0
    if slots is not None and len(running | waiting) < slots:
        expected = 2
    if "a" in running:
        expected = 3
    assert adapter_grade(candidate, "a", 1.0) == expected
    assert adapter_grade(candidate, "a", MEMORY_FRESH_S) == 0


@pytest.mark.parametrize("mode", ["ignore", "prefer", "require"])
def test_an_adapter_that_no_replica_has(build: Build, mode: AdapterMode) -> None:
    """If it is required the request is refused by name, otherwise any replica serves it."""
    router = build.router(build.pool(2, adapters=mode))
    if mode == "require":
        assert "the adapter 'fr' loaded" in refused(router, build, adapter="fr").message
    else:
        ask(router, build, adapter="fr")


def test_a_required_adapter_is_never_spilled(build: Build) -> None:
    """At the in-flight limit the request is refused as saturated."""
    endpoints = (build.endpoint(0), build.endpoint(1, adapters=frozenset({"fr"})))
    pool = build.pool(endpoints=endpoints, adapters="require", per_endpoint_in_flight=3)
    router = build.router(pool)
    assert {ask(router, build, adapter="fr") for _ in range(3)} == {"r1"}
    refusal = router.decide(build.request(adapter="fr"), 0.0, 0.0)
    assert isinstance(refusal, Refusal)
    assert refusal.kind is RefusalKind.SATURATED


def test_the_own_zone_comes_first_and_others_stay_fallbacks(build: Build) -> None:
    """A retry may leave the zone; a picker without a zone prefers none."""
    router = build.router(zoned(build, "abb"), zone="a")
    decision = router.decide(build.request(), 0.0, 0.0)
    assert isinstance(decision, Decision)
    assert decision.addresses[0] == "10.0.0.0:8000"
    assert len(decision.addresses) == 3
    elsewhere = build.router(zoned(build, "abb"))
    assert {ask(elsewhere, build) for _ in range(3)} == {"r0", "r1", "r2"}


@pytest.mark.parametrize(("hop", "local"), [(0.0, 1), (0.05, 3)])
def test_a_pick_in_another_zone_costs_the_hop(build: Build, hop: float, local: int) -> None:
    """Each request in flight costs the usual 20 ms: those in the own zone are kept for a hop."""
    router = build.router(zoned(build, "ab", zone_hop_s=hop), zone="a")
    picks = [ask(router, build) for _ in range(local + 1)]
    assert picks == ["r0"] * local + ["r1"]


def test_a_zone_without_replicas_is_no_preference(build: Build) -> None:
    """If no replica is in the picker's zone, all are equal."""
    router = build.router(zoned(build, "bbb"), zone="a")
    assert {ask(router, build) for _ in range(3)} == {"r0", "r1", "r2"}


def test_the_adapter_is_preferred_over_the_zone(build: Build) -> None:
    """The order is: adapter in the zone, adapter elsewhere, the zone."""
    fr = frozenset({"fr"})
    endpoints = (
        build.endpoint(0, zone="a"),
        build.endpoint(1, zone="b", adapters=fr),
        build.endpoint(2, zone="a", adapters=fr),
        build.endpoint(3, zone="b"),
    )
    pool = build.pool(endpoints=endpoints, prefer_zone=True, fallbacks=3)
    decision = build.router(pool, zone="a").decide(build.request(adapter="fr"), 0.0, 0.0)
    assert isinstance(decision, Decision)
    hosts = [address[7] for address in decision.addresses]
    assert hosts == ["2", "1", "0", "3"]


@given(
    zones=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0.5, 1.0, 3.0])), min_size=1),
    factor=st.sampled_from([1.0, 1.1, 1.5, 3.0]),
    ends=st.lists(st.booleans(), min_size=1, max_size=80),
)
def test_the_bound_of_spilling_holds(
    build: Build, zones: list[tuple[str, float]], factor: float, ends: list[bool]
) -> None:
    """Requests leave the own zone only when each of its replicas is at its bound.

    So it is for policies whose prices are no seconds.

    Where all replicas are in the own zone, the preference has no effect (rule 2).
    """
    orders = any(zone != "a" for zone, _ in zones)
    endpoints = tuple(
        build.endpoint(number, zone=zone, capacity=capacity)
        for number, (zone, capacity) in enumerate(zones)
    )
    pool = build.pool(
        endpoints=endpoints, policy="least-in-flight", prefer_zone=True, spill_factor=factor
    )
    router = build.router(pool, zone="a")
    open_tickets = []
    for at, end in enumerate(ends):
        loads = {key.id: load.in_flight for key, load in router.ledger.loads()}
        share = factor * (sum(loads.values()) + 1) / sum(each.capacity for each in endpoints)
        room = {
            each.key.id
            for each in endpoints
            if each.zone == "a"
            and loads[each.key.id] + 1 <= max(2, ceil(share * each.capacity - 1e-9))
        }
        decision = router.decide(build.request(), float(at), 0.0)
        assert isinstance(decision, Decision)
        assert decision.ticket is not None
        if room and orders:
            assert decision.ticket.endpoint.id in room
        open_tickets.append(decision.ticket)
        if end:
            assert router.settle(open_tickets.pop(0), Outcome.DONE, float(at))


def test_constraints_hold_in_a_large_pool(build: Build) -> None:
    """A removed replica is never picked, and the only one that fits is found."""
    endpoints = tuple(
        build.endpoint(number, device="a100" if number == 77 else "t4") for number in range(100)
    )
    pool = build.pool(
        endpoints=endpoints, model_needs=(ModelNeeds("m", device="a100", device_required=True),)
    )
    router = build.router(pool)
    assert {ask(router, build, blocks=(1, 2)) for _ in range(10)} == {"r77"}


def test_a_lease_overrides_constraints_and_preferences(build: Build) -> None:
    """A sequence stays on the only replica that holds its state."""
    pool = zoned(build, "ab", variants=(Variant("stable", 1),))
    router = build.router(pool, zone="b")
    sequence = {"sequence_id": 7}
    assert ask(router, build, sequence_start=True, **sequence) == "r1"
    needs = (ModelNeeds("m", device="x", device_required=True),)
    changed = build.pool(endpoints=pool.endpoints, model_needs=needs)
    router.set_pools({"llm": changed}, 1.0)
    assert ask(router, build, now=1.0, **sequence) == "r1"
