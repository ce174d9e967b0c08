"""Conditions and their effect on decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ext_proc.routing.health.conditions import Conditions, moved_on
from ext_proc.routing.health.ejection_record import Cause
from ext_proc.routing.values.pool import EndpointKey, Variant
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.ticket import Outcome

R0, R1 = EndpointKey("r0", 1), EndpointKey("r1", 1)


def fail(router, key=R0, pool="llm", *, answered=True):
    for _ in range(3):
        router.conditions.bad(pool, key, 0.0, answered=answered)


def hosts(router, build, count=20, now=1.0, **request):
    """Return the hosts picked over some decisions, each settled at once."""
    picked = set()
    for _ in range(count):
        decision = router.decide(build.request(**request), now, now)
        picked.add(decision.addresses[0].removesuffix(":8000"))
        if decision.ticket is not None:
            router.settle(decision.ticket, Outcome.DONE, now)
    return picked


def test_an_ejected_replica_gets_no_new_work(build):
    """It is neither the pick nor a fallback."""
    router = build.router(build.pool(3, policy="least-in-flight"))
    fail(router)
    for _ in range(20):
        decision = router.decide(build.request(), 1.0, 1.0)
        assert "10.0.0.0:8000" not in decision.addresses


def test_a_half_open_replica_gets_one_request_at_a_time(build):
    """After one request the next ones go elsewhere until its result is known."""
    router = build.router(build.pool(2, policy="round-robin"))
    fail(router)
    first = [router.decide(build.request(), 11.0, 11.0).addresses[0] for _ in range(8)]
    assert first.count("10.0.0.0:8000") == 1
    router.conditions.good("llm", R0, 0.1, 11.5)
    again = [router.decide(build.request(), 12.0, 12.0).addresses[0] for _ in range(8)]
    assert again.count("10.0.0.0:8000") == 1


def test_not_ready_takes_two_probes_and_ready_takes_one(build):
    """One failed probe changes nothing, two set the condition, one good probe ends it."""
    router = build.router(build.pool(2, policy="least-in-flight"))
    conditions = router.conditions
    conditions.probed("llm", R0, ready=False)
    assert hosts(router, build) == {"10.0.0.0", "10.0.0.1"}
    conditions.probed("llm", R0, ready=False)
    assert hosts(router, build) == {"10.0.0.1"}
    assert list(conditions.counts()) == [("llm", "not-ready", 1)]
    conditions.probed("llm", R0, ready=True)
    assert hosts(router, build) == {"10.0.0.0", "10.0.0.1"}


def test_conditions_never_empty_a_subset(build):
    """If a subset hint leaves only a barred replica, that one is picked."""
    router = build.router(build.pool(2))
    fail(router)
    assert hosts(router, build, subset=frozenset({"10.0.0.0"})) == {"10.0.0.0"}


def test_a_condition_holds_in_its_pool_only(build):
    """A broken model does not bar the server for its other models."""
    other = replace(build.pool(2), name="vision", models=frozenset({"v"}))
    router = build.router(build.pool(2), other)
    fail(router)
    assert hosts(router, build) == {"10.0.0.1"}
    assert hosts(router, build, pool="vision") == {"10.0.0.0", "10.0.0.1"}


def test_conditions_are_shown_with_their_cause(build):
    """The state shows why a replica is ejected, and for how long."""
    router = build.router(build.pool(2))
    fail(router)
    shown = router.state(4.0)["pools"]["llm"]["endpoints"]["r0"]
    assert shown["conditions"] == ["ejected", "dead-backend"]
    assert shown["outlier"]["ejected_for_s"] == pytest.approx(6.0)
    assert router.conditions.ejected == {("llm", Cause.DEAD_BACKEND): 1}


def test_a_silent_replica_is_shown_so(build):
    """The condition ``silent`` is listed with the others."""
    router = build.router(build.pool(2))
    router.registry.observe("r0", (Reading(at=0.0, queued=1.0),))
    router.registry.silent("r0")
    shown = router.state(1.0)["pools"]["llm"]["endpoints"]
    assert (shown["r0"]["conditions"], shown["r1"]["conditions"]) == (["silent"], [])


def test_a_restart_ends_an_ejection(build):
    """A restarted process is not ejected for failures of the old one."""
    router = build.router(build.pool(2))
    fail(router)
    router.registry.restarted("r0", 0.0)
    assert not list(router.conditions.counts())


def test_changed_readings_are_progress():
    """A newer reading with equal values is no progress."""
    before = (Reading(at=0.0, queued=1.0, kv_used=0.5),)
    assert not moved_on(before, (replace(before[0], at=9.0),))
    assert moved_on(before, (replace(before[0], kv_used=0.6),))


def test_a_frozen_replica_is_found_by_its_readings(build):
    """Work in flight with the same readings for half a minute ejects, if a peer progresses."""
    router = build.router(build.pool(2, policy="round-robin"))
    for _ in range(2):
        router.decide(build.request(), 0.0, 0.0)
    router.conditions.probed("llm", R0, ready=False)
    for second in range(40):
        for name in ("r0", "r1"):
            moving = float(second) if name == "r1" else 0.0
            router.registry.observe(name, (Reading(at=float(second), running=1.0, kv_used=moving),))
        router.registry.sweep(float(second))
    assert router.conditions.of("llm", R0) == ["ejected", "frozen"]
    assert router.conditions.of("llm", R1) == []


def test_attempts_that_waited_in_vain_are_evidence_in_each_pool_of_a_replica(build):
    """Although nothing is in flight there: the requests have moved on."""
    other = replace(build.pool(2), name="vision", models=frozenset({"v"}))
    router = build.router(build.pool(2), other)
    for second in range(40):
        router.conditions.alive(R1, float(second))
        if second % 3 == 2:
            router.conditions.kept_waiting(R0, 2.0, float(second), second % 2)
        router.registry.sweep(float(second))
    assert sick(router) == sick(router, pool="vision") == ["ejected", "frozen"]


def test_removed_pools_and_replicas_are_dropped(build):
    """Conditions of removed replicas are dropped, and results of unknown ones are ignored."""
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
    """A retried request is charged to the replica that serves it, and settles there."""
    router = build.router(build.pool(2))
    ticket = router.decide(build.request(), 0.0, 0.0).ticket
    other = "10.0.0.1:8000" if ticket.endpoint == R0 else "10.0.0.0:8000"
    there = R1 if ticket.endpoint == R0 else R0
    assert router.note_serving(ticket.id, other, 1.0)
    assert not router.note_serving(ticket.id, other, 2.0)
    assert router.registry.in_flight() == {ticket.endpoint.id: 0, there.id: 1}
    assert router.settle(ticket, Outcome.DONE, 3.0)
    assert set(router.registry.in_flight().values()) == {0}
    assert not router.note_serving(ticket.id, other, 4.0)
    assert not router.settle(ticket, Outcome.DONE, 5.0)


def reading(at, **changes):
    return Reading(at, **changes)


def sick(router, key=R0, pool="llm"):
    return router.conditions.of(pool, key)


def test_an_engine_that_counts_iterations_must_iterate():
    """Requests that queue at a stuck engine are no progress."""
    stuck = reading(1.0, queued=1, iterations=7), reading(2.0, queued=9, iterations=7)
    assert not moved_on(stuck[:1], stuck[1:])
    assert moved_on(stuck[:1], [reading(2.0, queued=1, iterations=8)])
    assert moved_on([reading(1.0, queued=1)], [reading(2.0, queued=9)])
    assert moved_on([], stuck[:1])


def test_low_gpu_memory_has_a_margin(build):
    """Two seconds below the floor set it; only a value above floor plus margin ends it."""
    router = build.router(replace(build.pool(2), gpu_memory_free=0.1))
    for at, used, expected in [
        (1.0, 0.95, []),
        (2.0, 0.85, []),
        (3.0, 0.95, []),
        (4.0, 0.95, []),
        (5.0, 0.95, ["low-gpu-memory"]),
        (6.0, 0.89, ["low-gpu-memory"]),
        (7.0, 0.87, []),
    ]:
        router.registry.observe("r0", [reading(at, gpu_memory_used=used)])
        assert sick(router) == expected, at
    assert sick(router, R1) == []


def test_low_gpu_memory_ends_without_further_readings(build):
    """A condition of unknown memory is ended after ten seconds."""
    router = build.router(replace(build.pool(2), gpu_memory_free=0.1))
    for at in (1.0, 3.0):
        router.registry.observe("r0", [reading(at, gpu_memory_used=0.99)])
    assert hosts(router, build) == {"10.0.0.1"}
    router.registry.sweep(12.0)
    assert sick(router) == ["low-gpu-memory"]
    router.registry.sweep(13.5)
    assert sick(router) == []
    router.registry.observe("r0", [reading(14.0, gpu_memory_used=None)])
    assert sick(router) == []


def with_published(build, *names, count=2, **changes):
    pool = replace(build.pool(count), **changes)
    first, *rest = pool.endpoints
    return replace(pool, endpoints=(replace(first, told=names), *rest))


def test_published_findings_bar_too(build):
    """The condition shows its reasons, and ends when the control server withdraws them."""
    router = build.router(with_published(build, "frozen", share=True))
    assert hosts(router, build) == {"10.0.0.1"}
    assert sick(router) == ["told"]
    shown = router.conditions.describe("llm", R0, 0.0, silent=False)
    assert shown["why"] == {"told": "frozen"}
    assert list(router.conditions.counts()) == [("llm", "told", 1)]
    router.set_pools({"llm": build.pool(2)}, 1.0)
    assert hosts(router, build) == {"10.0.0.0", "10.0.0.1"}


def test_published_findings_are_not_reported_again(build):
    """Otherwise two pickers would keep each other's finding alive."""
    router = build.router(with_published(build, "frozen", share=True))
    assert router.conditions.findings() == []
    fail(router, R1)
    (found,) = router.conditions.findings()
    assert (found.pool, found.key, found.conditions) == ("llm", R1, ("ejected", "dead-backend"))


def test_only_pools_that_share_have_findings(build):
    """A half-open replica is still a finding, because this picker still tests it."""
    router = build.router(build.pool(2))
    fail(router)
    assert router.conditions.findings() == []
    router.set_pools({"llm": replace(build.pool(2), share=True)}, 1.0)
    assert [each.key for each in router.conditions.findings()] == [R0]
    hosts(router, build, now=11.0)
    assert [each.key for each in router.conditions.findings()] == [R0]


def test_a_picker_tests_its_own_finding_although_it_is_published(build):
    """Its own published finding does not block its half-open requests."""
    router = build.router(build.pool(2, policy="round-robin"))
    fail(router)
    router.set_pools(
        {"llm": with_published(build, "ejected", policy="round-robin", share=True)}, 1.0
    )
    assert hosts(router, build, now=2.0) == {"10.0.0.1"}
    assert hosts(router, build, now=11.0) == {"10.0.0.0", "10.0.0.1"}


@pytest.mark.parametrize(("after_s", "found"), [(0.02, ["sinkhole"]), (0.4, []), (None, [])])
def test_a_replica_that_fails_fast_is_a_sinkhole(build, after_s, found):
    """Its errors take less than a tenth of the time of its peers' answers, which is known."""
    router = build.router(build.pool(2))
    router.conditions.good("llm", R1, 0.5, 0.0)
    for _ in range(3):
        router.conditions.bad("llm", R0, 0.0, answered=True, after_s=after_s)
    assert sick(router) == ["ejected", "dead-backend", *found]


def test_a_replica_that_sleeps_gets_nothing_until_it_is_woken(build):
    """A sleeping engine answers probes, and requests to it would wait until it is woken."""
    router = build.router(build.pool(2))
    router.registry.observe("r0", [reading(1.0, asleep=True)])
    assert sick(router) == ["asleep"]
    assert hosts(router, build) == {"10.0.0.1"}
    router.registry.observe("r0", [reading(2.0, asleep=False)])
    assert sick(router) == []


def test_sleep_of_which_nothing_is_known_any_more_ends(build):
    """A server without that series would otherwise stay barred for ever, restarted or not."""
    router = build.router(build.pool(2))
    for after in ([reading(2.0)], []):
        router.registry.observe("r0", [reading(1.0, asleep=True)])
        router.registry.observe("r0", after)
        assert sick(router) == []
    router.registry.observe("r0", [reading(3.0, asleep=True)])
    for pools in ({}, {"llm": build.pool(2)}):
        router.set_pools(pools, 4.0)
    assert sick(router) == [], "it was removed meanwhile"


def test_a_pool_that_comes_later_learns_of_the_sleep(build):
    """The next reading bars the replica there too."""
    router = build.router(build.pool(2))
    router.registry.observe("r0", [reading(1.0, asleep=True)])
    router.set_pools({name: build.pool(2, name=name) for name in ("llm", "more")}, 1.5)
    router.registry.observe("r0", [reading(2.0, asleep=True)])
    assert router.conditions.of("more", R0) == ["asleep"]
