"""The reference schedulers: oracle and probe."""

from __future__ import annotations

import pytest

from bench.simulate.replica import ReplicaTask
from bench.simulate.schedulers.oracle import Oracle, Probe
from support.simulated import job, world


def test_the_oracle_takes_the_shortest_wait() -> None:
    """A replica with the prompt is skipped if computing it elsewhere is faster."""
    made = world(2)
    oracle = Oracle(made)
    holder = made.fleet[0]
    holder.arrive(ReplicaTask(job(1, *range(4)), 0.0), 0.0)
    while holder.running:
        holder.advance()
    assert oracle.choose(job(2, *range(4)), 1.0).replicas[0] == 0
    holder.arrive(ReplicaTask(job(3, *range(100, 110)), 1.0), 1.0)
    assert oracle.choose(job(4, *range(4)), 1.0).replicas[0] == 1


def test_the_exact_oracle_waits_for_the_rest_of_a_prompt_only() -> None:
    """A holder that has nearly done a long prompt is free sooner than another copy is made."""
    made = world(2)
    holder = made.fleet[0]
    holder.arrive(ReplicaTask(job(1, *range(8), tokens=4096), 0.0), 0.0)
    while holder.running:
        holder.advance()
    holder.arrive(ReplicaTask(job(2, *range(100, 132), tokens=32 * 512), 10.0), 10.0)
    while holder.next_at < 11.9:  # it takes 2.1 s
        holder.advance()
    now = job(3, *range(8), tokens=4096)
    assert Oracle(made, exact=True).choose(now, 11.9).replicas[0] == 0
    assert Oracle(made).choose(now, 11.9).replicas[0] == 1


def test_the_probe_leaves_a_holder_only_when_waiting_costs_five_prompts() -> None:
    """A miss costs five times its prefill time, including the cost to other requests."""
    for extra_blocks, stays in ((32, True), (48, False)):  # 2.0 and 3.1 s against 5 * 0.512 s
        probe = Probe(world(2))
        holder = probe.choose(job(1, *range(8), tokens=4096), 0.0).replicas[0]
        long = tuple(range(1000, 1000 + extra_blocks))
        probe.choose(job(2, *range(8), *long, tokens=512 * (8 + extra_blocks)), 10.0)
        assert probe.own.requests[holder] == 2
        picked = probe.choose(job(3, *range(8), tokens=4096), 10.0)
        assert (picked.replicas[0] == holder) is stays


def test_the_probe_forgets_a_restarted_replica() -> None:
    """A restart resets the replica's blocks and clock."""
    made = world(1)
    probe = Probe(made)
    probe.choose(job(1, 1, 2), 0.0)
    probe.membership(0, "restarted", 0.0)
    assert probe.choose(job(2, 1, 2), 0.0).matched == 0


@pytest.mark.parametrize("rule", [Oracle, Probe])
def test_without_members_the_job_is_shed(rule: type[Oracle | Probe]) -> None:
    """Without replicas there is no choice."""
    scheduler = rule(world(1))
    scheduler.membership(0, "silent", 0.0)
    assert scheduler.choose(job(1), 0.0) is None
