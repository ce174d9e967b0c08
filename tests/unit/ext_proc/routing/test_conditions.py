"""Conditions and what they do to a choice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ext_proc.routing.conditions import Conditions, moved_on
from ext_proc.routing.ejection import Cause
from ext_proc.routing.types import EndpointKey, Outcome, Reading, Variant

R0, R1 = EndpointKey("r0", 1), EndpointKey("r1", 1)


def fail(router, key=R0, pool="llm", *, answered=True):
    for _ in range(3):
        router.conditions.bad(pool, key, 0.0, answered=answered)


def hosts(router, build, count=20, now=1.0, **request):
    """Return who is picked over some decisions, each settled at once."""
    picked = set()
    for _ in range(count):
        decision = router.decide(build.request(**request), now, now)
        picked.add(decision.addresses[0].removesuffix(":8000"))
        if decision.ticket is not None:
            router.settle(decision.ticket, Outcome.DONE, now)
    return picked


def test_an_ejected_replica_gets_no_new_work(build):
    """Neither as the pick nor as a fallback."""
    router = build.router(build.pool(3, policy="least-in-flight"))
    fail(router)
    for _ in range(20):
        decision = router.decide(build.request(), 1.0, 1.0)
        assert "10.0.0.0:8000" not in decision.addresses


def test_a_half_open_replica_gets_one_request_at_a_time(build):
    """The first choice goes there once; the next ones go elsewhere until its result is in."""
    router = build.router(build.pool(2, policy="round-robin"))
    fail(router)
    first = [router.decide(build.request(), 11.0, 11.0).addresses[0] for _ in range(8)]
    assert first.count("10.0.0.0:8000") == 1
    router.conditions.good("llm", R0, 0.1, 11.5)
    again = [router.decide(build.request(), 12.0, 12.0).addresses[0] for _ in range(8)]
    assert again.count("10.0.0.0:8000") == 1


def test_a_sequence_goes_on_where_it_lives(build):
    """A lease outlives the ejection: the state is there and nowhere else."""
    router = build.router(build.pool(3))
    request = build.request(sequence_id=7, sequence_start=True)
    home = router.decide(request, 0.0, 0.0)
    fail(router, home.ticket.endpoint)
    more = router.decide(build.request(sequence_id=7), 1.0, 1.0)
    assert more.addresses == home.addresses


def test_not_ready_takes_two_probes_and_ready_takes_one(build):
    """Hysteresis: one lost probe is a hiccup."""
    router = build.router(build.pool(2, policy="least-in-flight"))
    conditions = router.conditions
    conditions.probed("llm", R0, ready=False)
    assert hosts(router, build) == {"10.0.0.0", "10.0.0.1"}
    conditions.probed("llm", R0, ready=False)
    assert hosts(router, build) == {"10.0.0.1"}
    assert list(conditions.counts()) == [("llm", "not-ready", 1)]
    conditions.probed("llm", R0, ready=True)
    assert hosts(router, build) == {"10.0.0.0", "10.0.0.1"}


def test_conditions_never_empty_a_choice(build):
    """Where all are barred, all are allowed."""
    router = build.router(build.pool(2))
    for key in (R0, R1):
        for _ in range(2):
            router.conditions.probed("llm", key, ready=False)
    assert hosts(router, build) == {"10.0.0.0", "10.0.0.1"}


def test_conditions_never_empty_a_subset(build):
    """Where a subset hint leaves only a barred replica, that one is asked."""
    router = build.router(build.pool(2))
    fail(router)
    assert hosts(router, build, subset=frozenset({"10.0.0.0"})) == {"10.0.0.0"}


def test_a_condition_holds_in_its_pool_only(build):
    """A broken model does not take the server's others with it."""
    other = replace(build.pool(2), name="vision", models=frozenset({"v"}))
    router = build.router(build.pool(2), other)
    fail(router)
    assert hosts(router, build) == {"10.0.0.1"}
    assert hosts(router, build, pool="vision") == {"10.0.0.0", "10.0.0.1"}


def test_a_large_pool_is_filtered_too(build):
    """The few candidates of a large pool are never barred ones."""
    count = 100
    router = build.router(build.pool(count, policy="prefix-affinity"))
    for number in range(count // 2):
        fail(router, EndpointKey(f"r{number}", 1))
    barred = {f"10.0.0.{number}" for number in range(count // 2)}
    assert not barred & hosts(router, build, 200, blocks=(1, 2))


def test_conditions_are_shown_with_their_cause(build):
    """An operator sees why a replica is out, and for how long."""
    router = build.router(build.pool(2))
    fail(router)
    shown = router.state(4.0)["pools"]["llm"]["endpoints"]["r0"]
    assert shown["conditions"] == ["ejected", "dead-backend"]
    assert shown["outlier"]["ejected_for_s"] == pytest.approx(6.0)
    assert router.conditions.ejected == {("llm", Cause.DEAD_BACKEND): 1}


def test_a_silent_replica_is_shown_so(build):
    """The router's own condition stands beside the others."""
    router = build.router(build.pool(2))
    router.observe("r0", (Reading(at=0.0, queued=1.0),))
    router.silent("r0")
    shown = router.state(1.0)["pools"]["llm"]["endpoints"]
    assert (shown["r0"]["conditions"], shown["r1"]["conditions"]) == (["silent"], [])


def test_a_new_process_begins_anew(build):
    """Counters that fell prove that what failed is gone."""
    router = build.router(build.pool(2))
    fail(router)
    router.restarted("r0", 0.0)
    assert not list(router.conditions.counts())


def test_changed_numbers_are_a_sign_of_life():
    """Time alone is none."""
    before = (Reading(at=0.0, queued=1.0, kv_used=0.5),)
    assert not moved_on(before, (replace(before[0], at=9.0),))
    assert moved_on(before, (replace(before[0], kv_used=0.6),))


def test_a_frozen_replica_is_found_by_its_numbers(build):
    """Work in flight, the same numbers for half a minute, and a peer that moves."""
    router = build.router(build.pool(2, policy="round-robin"))
    for _ in range(2):
        router.decide(build.request(), 0.0, 0.0)
    for second in range(40):
        for name in ("r0", "r1"):
            moving = float(second) if name == "r1" else 0.0
            router.observe(name, (Reading(at=float(second), running=1.0, kv_used=moving),))
        router.sweep(float(second))
    assert router.conditions.of("llm", R0) == ["ejected", "frozen"]
    assert router.conditions.of("llm", R1) == []


def test_pools_and_replicas_that_leave_are_forgotten(build):
    """Nothing is kept of what is gone, and unknown ones are ignored."""
    conditions = Conditions()
    pool = build.pool(2, variants=(Variant("stable", 1),))
    conditions.set_pools({"llm": pool})
    for _ in range(3):
        conditions.bad("llm", R0, 0.0, answered=False)
        conditions.probed("llm", R1, ready=False)
    assert len(list(conditions.counts())) == 2
    conditions.set_pools({})
    conditions.bad("llm", R0, 0.0, answered=False)
    conditions.good("llm", R0, None, 0.0)
    conditions.probed("llm", R1, ready=False)
    conditions.picked("llm", R0, 0.0)
    assert not list(conditions.counts())
    conditions.set_pools({"llm": pool})
    assert not list(conditions.counts())


def test_a_charge_moves_while_its_holder_keeps_the_old_ticket(build):
    """A long request that was retried counts where it runs, and settles there."""
    router = build.router(build.pool(2))
    ticket = router.decide(build.request(), 0.0, 0.0).ticket
    other = "10.0.0.1:8000" if ticket.endpoint == R0 else "10.0.0.0:8000"
    there = R1 if ticket.endpoint == R0 else R0
    assert router.told(ticket.id, other, 1.0)
    assert not router.told(ticket.id, other, 2.0)
    assert router.in_flight() == {ticket.endpoint.id: 0, there.id: 1}
    assert router.settle(ticket, Outcome.DONE, 3.0)
    assert set(router.in_flight().values()) == {0}
    assert not router.told(ticket.id, other, 4.0)
    assert not router.settle(ticket, Outcome.DONE, 5.0)
