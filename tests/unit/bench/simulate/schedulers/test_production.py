"""The adapter gives the picker's router its production inputs."""

from __future__ import annotations

from bench.simulate.schedulers.production import ProductionScheduler, _prompt
from support.simulated import job, sample, world


def test_affinity_follows_the_blocks() -> None:
    """A repeated prompt returns to its replica, with the match; all others are behind."""
    scheduler = ProductionScheduler("prefix-affinity", world(4))
    first = scheduler.choose(job(1, 1, 2, 3), 0.0)
    again = scheduler.choose(job(2, 1, 2, 3), 0.1)
    assert (again.replicas[0], again.matched) == (first.replicas[0], 3)
    assert sorted(again.replicas) == [0, 1, 2, 3]


def test_tickets_settle_wherever_the_job_went() -> None:
    """A retry moves the charge and the end releases it."""
    scheduler = ProductionScheduler("least-in-flight", world(2))
    pick = scheduler.choose(job(1), 0.0).replicas[0]
    scheduler.moved(job(1), 1 - pick, 0.1)
    assert scheduler._router.registry.in_flight() == {f"r{pick}": 0, f"r{1 - pick}": 1}
    scheduler.answering(job(1), 0.2)
    scheduler.settled(job(1), 0.3)
    assert set(scheduler._router.registry.in_flight().values()) == {0}
    scheduler.settled(job(1), 0.3)
    scheduler.moved(job(1), 0, 0.3)
    assert scheduler._router.ledger.unmatched == 0


def test_a_joiner_is_no_member_before() -> None:
    """A replica joins the pool at its time, and its slow start begins then."""
    scheduler = ProductionScheduler("round-robin", world(2, join_at_s=5.0, slow_start_s=10.0))
    assert {scheduler.choose(job(n), 0.0).replicas[0] for n in range(6)} == {1}
    scheduler.membership(0, "joined", 5.0)
    assert {scheduler.choose(job(n), 40.0).replicas[0] for n in range(10, 16)} == {0, 1}
    assert scheduler._router.pools["simulated"].endpoints[0].joined_unix_s == 5.0


def test_the_silent_come_last_and_the_restarted_are_cold() -> None:
    """Silence and restart of a replica reach the router."""
    scheduler = ProductionScheduler("prefix-affinity", world(2))
    holder = scheduler.choose(job(1, 1, 2, 3), 0.0).replicas[0]
    scheduler.observe(holder, sample(0.1), 0.1)
    scheduler.membership(holder, "silent", 0.2)
    assert scheduler.choose(job(2, 1, 2, 3), 0.3).replicas[0] == 1 - holder
    scheduler.membership(holder, "restarted", 0.4)
    assert scheduler._router.index.match_all((1, 2, 3)).keys() == {
        key for key in scheduler._router.index.match_all((1,)) if key.id == f"r{1 - holder}"
    }


def test_capacities_are_told_or_not() -> None:
    """A slow replica's capacity is its speed if capacities are known, else 1."""
    for known, capacity in ((True, 0.5), (False, 1.0)):
        scheduler = ProductionScheduler(
            "round-robin", world(2, slow_replicas=1, capacities_known=known)
        )
        assert scheduler._router.pools["simulated"].endpoints[1].capacity == capacity


def test_prompts_are_equal_where_their_blocks_are() -> None:
    """Prompts have four bytes per token and diverge where their blocks diverge."""
    one, two = _prompt(job(1, 5, 6), 512), _prompt(job(2, 5, 7), 512)
    assert len(one) >= 4 * job(1, 5, 6).input_tokens
    assert one[:2048] == two[:2048]
    assert one[2048:2056] != two[2048:2056]


def test_first_tokens_are_heard_of_as_the_log_tells_of_them() -> None:
    """First tokens reach the router one second later, also after the job has ended."""
    scheduler = ProductionScheduler("auto", world(2))
    pace = scheduler._router.learner.models["simulated"]
    for number in (1, 2):
        scheduler.choose(job(number), 0.0)
        scheduler.answering(job(number), 0.5)
    scheduler.settled(job(1), 0.6)
    scheduler.choose(job(3), 1.4)
    assert pace.describe()["first_bytes"] == 0
    scheduler.choose(job(4), 1.5)
    assert pace.describe()["first_bytes"] == 2
