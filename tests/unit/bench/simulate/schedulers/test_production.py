"""The picker's router sees in simulation what it sees in production."""

from __future__ import annotations

from bench.simulate.schedulers.production import ProductionScheduler, _prompt
from support.simulated import job, sample, world


def test_affinity_follows_the_blocks() -> None:
    """A repeated prompt goes back, with its match known."""
    scheduler = ProductionScheduler("prefix-affinity", world(4))
    first = scheduler.choose(job(1, 1, 2, 3), 0.0)
    again = scheduler.choose(job(2, 1, 2, 3), 0.1)
    assert (again.replicas[0], again.matched) == (first.replicas[0], 3)
    assert len(again.replicas) == 3


def test_tickets_settle_wherever_the_job_went() -> None:
    """A retry moves the charge and the end gives it back."""
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
    """The pool grows when it joins, and its ramp starts there."""
    scheduler = ProductionScheduler("round-robin", world(2, join_at_s=5.0, slow_start_s=10.0))
    assert {scheduler.choose(job(n), 0.0).replicas[0] for n in range(6)} == {1}
    scheduler.membership(0, "joined", 5.0)
    assert {scheduler.choose(job(n), 40.0).replicas[0] for n in range(10, 16)} == {0, 1}
    assert scheduler._router.pools["simulated"].endpoints[0].joined_unix_s == 5.0


def test_the_silent_come_last_and_the_restarted_are_cold() -> None:
    """Membership news reach the router."""
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
    """A slow replica's capacity is its speed where the fleet file says it."""
    for known, capacity in ((True, 0.5), (False, 1.0)):
        scheduler = ProductionScheduler(
            "round-robin", world(2, slow_replicas=1, capacities_known=known)
        )
        assert scheduler._router.pools["simulated"].endpoints[1].capacity == capacity


def test_prompts_are_equal_where_their_blocks_are() -> None:
    """The bytes have four per token, and fork where the blocks fork."""
    one, two = _prompt(job(1, 5, 6), 512), _prompt(job(2, 5, 7), 512)
    assert len(one) >= 4 * job(1, 5, 6).input_tokens
    assert one[:2048] == two[:2048]
    assert one[2048:2056] != two[2048:2056]


def test_first_tokens_are_heard_of_as_the_log_tells_of_them() -> None:
    """A second after they came, whether the job has ended by then or not."""
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
