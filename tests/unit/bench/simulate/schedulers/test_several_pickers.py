"""Several pickers: each job has one picker; telemetry reaches all."""

from __future__ import annotations

from collections import Counter

from bench.simulate.schedulers.local import LocalScheduler
from bench.simulate.schedulers.several_pickers import SeveralPickers
from bench.simulate.schedulers.smg import LeastLoad
from support.simulated import job, sample, world

NUMBER = 4


def several() -> SeveralPickers:
    """Return four pickers over two replicas."""
    return SeveralPickers(LeastLoad, world(2, pickers=NUMBER))


def test_each_decides_on_its_share() -> None:
    """Jobs are spread over all pickers, and each counts only its own."""
    made = several()
    for number in range(200):
        made.choose(job(number), 0.0)
    shares = [
        sum(each.own.requests) for each in made._schedulers if isinstance(each, LocalScheduler)
    ]
    assert sum(shares) == 200
    assert min(shares) > 30


def test_who_decided_hears_of_the_job() -> None:
    """Retries, first tokens and ends reach the job's picker and leave no state."""
    made = several()
    for number in range(20):
        made.choose(job(number), 0.0)
        made.moved(job(number), 1, 0.0)
        made.answering(job(number), 0.1)
    held = Counter[int]()
    for each in made._schedulers:
        assert isinstance(each, LocalScheduler)
        held.update(dict(enumerate(each.own.requests)))
    assert held == {0: 0, 1: 20}
    for number in range(20):
        made.settled(job(number), 0.2)
    assert all(
        each.own.requests == [0, 0] for each in made._schedulers if isinstance(each, LocalScheduler)
    )


def test_readings_and_deaths_reach_all() -> None:
    """When both replicas are silent, every picker sheds."""
    made = several()
    made.observe(0, sample(0.0, tokens=5000), 0.1)
    made.observe(1, sample(0.0), 0.1)
    assert {made.choose(job(number), 0.2).replicas[0] for number in range(NUMBER)} == {1}
    for replica in (0, 1):
        made.membership(replica, "silent", 1.0)
    assert made.choose(job(9), 1.0) is None
    assert 9 not in made._of
