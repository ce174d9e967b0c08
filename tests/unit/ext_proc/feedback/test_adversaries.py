"""Callers that mean harm change the picture of a replica only by what it really did.

The schedules are drawn by seeds, which a failure names. ``TIDEGATE_EVIDENCE_SCHEDULES`` draws so
many, from seeds of their own.
"""

from __future__ import annotations

import functools
import os
import random
from statistics import median

import pytest

from ext_proc.blame import law
from ext_proc.blame.law import Effect
from support.adversaries import REPLICAS, Adversary, Kind, Sickness, World

MANY = int(os.environ.get("TIDEGATE_EVIDENCE_SCHEDULES", "0"))
SEEDS = random.Random().sample(range(10**9), MANY) if MANY else range(10)
HARM = (Kind.WRONG, Kind.UNREADABLE, Kind.FAILS, Kind.DRAWN_FAILS, Kind.HALF, Kind.LEAVES)
WELL_S, LIMIT_S = 20.0, 600.0
MOST = 100
"""No sick replica fails so many valid requests before it is ejected; 26 in 6,000 schedules."""
TIMES = 2.0
"""A sick replica fails at most so many times the valid requests that it fails in peace."""
LUCKY = 0.01
"""Share of schedules in which a well replica may be ejected."""


def drawn(seed: int) -> tuple[int, float, tuple[Adversary, ...]]:
    """Return honest clients, their requests per second, and fewer adversaries than clients."""
    rng = random.Random(seed)
    honest, rate = rng.randint(3, 8), rng.choice([4.0, 10.0, 20.0])
    return (
        honest,
        rate,
        tuple(
            Adversary(
                f"adversary-{number}",
                tuple(
                    (kind, rng.choice([0.2, 2.0]) if kind is Kind.HALF else rng.uniform(1.0, 20.0))
                    for kind in rng.choices((*HARM, Kind.VALID), k=rng.randint(1, 6))
                ),
                turn_s=rng.choice([0.5, 2.0, 5.0, 60.0]),
                sessions=rng.random() < 0.5,
            )
            for number in range(rng.randint(1, (honest - 1) // 2))
        ),
    )


def sickens(world: World, sickness: Sickness = Sickness.ERRORS) -> int:
    """Let a replica fall sick; return how many valid requests it fails until it is ejected.

    That may take minutes: with half an upload on it, an idle fleet sends it nothing.
    """
    world.run(WELL_S - world.now)
    assert not world.ejected, f"seed {world.seed}: a well replica is ejected"
    key = world.keys[world.seed % REPLICAS]
    world.sick[key] = sickness
    while not world.ejected and world.failed < MOST and world.now < WELL_S + LIMIT_S:
        world.step()
    assert set(world.ejected) == {key}, f"seed {world.seed}: the sick replica is not ejected"
    return world.failed


@functools.cache
def in_peace(seed: int, honest: int, rate: float) -> int:
    """Return what `sickens` does without adversaries."""
    return sickens(World(seed, honest, rate))


def test_adversaries_neither_eject_a_well_replica_nor_shelter_a_sick_one() -> None:
    """Fewer than the honest clients, with any schedule of requests, failures, 400s and uploads.

    Their requests are placed by chance, so one of many may be lucky before they are known.
    """
    beside, alone, lucky = [], [], []
    for seed in SEEDS:
        honest, rate, adversaries = drawn(seed)
        world = World(seed, honest, rate, adversaries)
        world.run(WELL_S)
        if world.ejected:
            lucky.append(seed)
            continue
        beside.append(sickens(world))
        alone.append(in_peace(seed, honest, rate))
    assert len(lucky) <= LUCKY * len(SEEDS), lucky
    assert median(beside) <= TIMES * median(alone), (list(SEEDS), beside, alone)


@pytest.mark.parametrize("kind", [Kind.WRONG, Kind.UNREADABLE, Kind.HALF])
@pytest.mark.parametrize("honest", [1, 6])
def test_what_content_decides_shelters_no_sick_replica(kind: Kind, honest: int) -> None:
    """Twenty a second, beside one gateway or several clients; two uploads each five seconds."""
    rate = 0.4 if kind is Kind.HALF else 20.0
    adversary = Adversary("adversary", ((kind, rate),))
    beside = [sickens(World(seed, honest, 10.0, (adversary,))) for seed in range(3)]
    alone = [in_peace(seed, honest, 10.0) for seed in range(3)]
    assert median(beside) <= TIMES * median(alone), (beside, alone)


def test_a_400_that_counts_as_good_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault, beside one gateway. Two clients that fail outvote one that is answered."""
    planted = tuple(
        rule._replace(effect=Effect.GOOD)
        if rule.outcome == "client" and rule.effect is Effect.ANSWERED
        else rule
        for rule in law.RULES
    )
    monkeypatch.setattr(law, "RULES", planted)
    with pytest.raises(AssertionError):
        test_what_content_decides_shelters_no_sick_replica(Kind.WRONG, 1)


@pytest.mark.parametrize("honest", [1, 6])
def test_a_replica_that_stands_still_is_found_beside_half_uploads_and_400s(honest: int) -> None:
    """Within a minute. Its front goes on answering 400; no valid request comes back."""
    adversaries = (
        Adversary("uploads", ((Kind.HALF, 0.4),)),
        Adversary("mistakes", ((Kind.WRONG, 5.0),)),
    )
    world = World(3, honest, 20.0, adversaries)
    sickens(world, Sickness.STANDS)
    assert world.now <= WELL_S + 60.0


@pytest.mark.parametrize("kind", [Kind.HALF, Kind.LONG])
def test_uploads_that_stop_and_honest_long_requests_eject_no_replica(kind: Kind) -> None:
    """For as long as two minutes, on a quiet fleet: all that a replica has stands."""
    world = World(5, 1, 1.0)
    for _ in range(2):
        world.send("other", kind, sessions=False)
    world.run(120.0)
    assert not world.ejected
