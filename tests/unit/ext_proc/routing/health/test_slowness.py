"""Which replicas are said to be slow, and how soon."""

from __future__ import annotations

import random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.routing.health.slowness import FACTOR, MAX_KINDS, PAST_HALF_S, Slowness
from ext_proc.routing.state.candidates import Replica
from ext_proc.routing.state.ledger import Load
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.ticket import Ticket
from support.tries import tries

KEYS: Final = tuple(EndpointKey(f"r{number}", 1) for number in range(4))


def slowness(*variants: str) -> Slowness:
    """Return a pool whose replicas have these variants."""
    made = Slowness()
    endpoints = tuple(
        Endpoint(key, variant, http=f"10.0.0.{n}:8000", grpc=None)
        for n, (key, variant) in enumerate(zip(KEYS, variants, strict=False))
    )
    named = tuple(Variant(each, 1) for each in dict.fromkeys(variants))
    made.set_pools({"llm": Pool("llm", variants=named, endpoints=endpoints)})
    return made


MEMBERS: Final = {key: Replica(key, Load()) for key in KEYS}


def ended(subject: Slowness, replica: int, took_s: float, now: float, kind="m", work=1.0) -> None:
    """Let a request end."""
    ticket = Ticket(1, KEYS[replica], "llm", work, now - took_s, kind=kind)
    MEMBERS[KEYS[replica]].sent += work
    subject.took(ticket, now)


def run(
    subject: Slowness, times: tuple[float, ...], per_s: float, for_s: int, seed: int = 1
) -> float | None:
    """Send requests at random; return when a replica was first said to be slow."""
    rng = random.Random(seed)
    for second in range(for_s):
        for _ in range(int(per_s)):
            replica = rng.randrange(len(times))
            ended(subject, replica, times[replica] * rng.lognormvariate(0.0, 0.8), float(second))
        subject.look(float(second), MEMBERS)
        if any(subject.slow()):
            return float(second)
    return None


def test_a_replica_that_is_ten_times_slower_is_named_within_a_minute() -> None:
    """At three requests a second, of which it gets half."""
    subject = slowness("stable", "stable")
    assert (run(subject, (0.1, 1.0), 3, 60) or 99.0) < 60.0
    ((pool, key, slow),) = subject.slow()
    assert (pool, key) == ("llm", KEYS[1])
    assert slow.factor > FACTOR


@pytest.mark.parametrize("times", [(0.1, 0.1), (0.1, 0.1, 0.2), (1.0,)])
def test_replicas_that_differ_little_are_not_slow(times: tuple[float, ...]) -> None:
    """In ten minutes at ten requests a second."""
    assert run(slowness(*["stable"] * len(times)), times, 10, 600) is None


def test_a_slower_variant_is_not_slow() -> None:
    """A canary of a larger model takes longer."""
    assert run(slowness("stable", "canary"), (0.1, 1.0), 10, 120) is None


def test_other_requests_are_not_compared() -> None:
    """A replica that gets long prompts, or another model, is not slow."""
    subject = slowness("stable", "stable")
    for second in range(120):
        for _ in range(3):
            ended(subject, 0, 0.1, float(second))
            ended(subject, 1, 5.0, float(second), work=4096.0)
            ended(subject, 1, 5.0, float(second), kind="other")
        subject.look(float(second), MEMBERS)
    assert not list(subject.slow())


def test_a_replica_that_recovers_is_slow_no_more() -> None:
    """Without requests, too: what is old is not known."""
    subject = slowness("stable", "stable")
    began = run(subject, (0.1, 1.0), 10, 60)
    assert began is not None
    for second in range(int(began), int(began) + 200):
        subject.look(float(second), MEMBERS)
    assert not list(subject.slow())


def served(
    subject: Slowness, began: int, for_s: int, per_s: int, *times: float, seed: int = 1
) -> int | None:
    """Send requests at random; return when a replica was first said to be slower than before."""
    rng = random.Random(seed)
    for second in range(began, began + for_s):
        for _ in range(per_s):
            replica = rng.randrange(len(times))
            took = times[replica] * rng.lognormvariate(0.0, 0.8)
            ended(subject, replica, took, float(second), work=float(2 ** rng.randrange(8)))
        subject.look(float(second), MEMBERS)
        if any(subject.slower()):
            return second
    return None


def test_a_pool_that_becomes_five_times_slower_is_named_within_a_minute() -> None:
    """All of its replicas at once, so none is slow against its peers; and not for ever."""
    subject = slowness("stable", "stable", "stable")
    assert served(subject, 0, 600, 9, 0.1, 0.1, 0.12) is None
    began = served(subject, 600, 60, 9, 0.5, 0.5, 0.6)
    assert began is not None
    assert began >= 600
    (first, *_) = (slow for _, _, slow in subject.slower())
    assert first.factor > FACTOR
    assert not list(subject.slow())
    served(subject, began + 1, int(2 * PAST_HALF_S), 9, 0.5, 0.5, 0.6)
    later = began + 2 + int(2 * PAST_HALF_S)
    assert served(subject, later, 60, 9, 0.5, 0.5, 0.6) is None


def test_the_only_replica_of_a_variant_is_compared_with_its_past() -> None:
    """It has no peers; the slower canary beside it says nothing."""
    subject = slowness("stable", "canary")
    assert served(subject, 0, 300, 6, 0.1, 0.8) is None
    assert served(subject, 300, 60, 6, 0.5, 0.8) is not None
    assert {key.id for _, key, _ in subject.slower()} == {"r0"}


def test_a_replica_that_is_slow_against_its_peers_is_not_said_to_be_slower_too() -> None:
    """One reason for one fact."""
    subject = slowness("stable", "stable", "stable")
    served(subject, 0, 300, 9, 0.1, 0.1, 0.1)
    for second in range(300, 360):
        served(subject, second, 1, 9, 0.1, 0.1, 1.0, seed=second)
    assert [key.id for _, key, _ in subject.slow()] == ["r2"]
    assert not list(subject.slower())


def test_a_busier_replica_is_not_slower() -> None:
    """At four times the requests they may take four times as long."""
    subject = slowness("stable", "stable")
    assert served(subject, 0, 600, 4, 0.1, 0.1) is None
    assert served(subject, 600, 300, 16, 0.4, 0.4) is None


def test_answers_of_other_lengths_are_not_compared() -> None:
    """Longer answers take longer."""
    subject = slowness("stable")
    for second in range(400):
        most = 16 if second < 300 else 1024
        ticket = Ticket(1, KEYS[0], "llm", 1.0, second - (0.1 if most == 16 else 5.0), kind="m")
        for _ in range(3):
            subject.took(ticket._replace(most=most), float(second))
        subject.look(float(second), MEMBERS)
        assert not list(subject.slower())


@settings(max_examples=tries(5))
@given(st.integers(0, 2**32), st.sampled_from([1, 3, 8]))
def test_a_steady_pool_is_not_said_to_be_slower(seed: int, per_s: int) -> None:
    """Whatever the seed, over half an hour."""
    subject = slowness("a", "a", "a")
    assert served(subject, 0, 1800, per_s, 0.2, 0.2, 0.25, seed=seed) is None


def test_kinds_are_bounded() -> None:
    """A client that invents models does not fill the memory."""
    subject = slowness("stable", "stable")
    for number in range(2 * MAX_KINDS):
        ended(subject, 0, 0.1, 1.0, kind=f"m{number}")
    assert len(subject._pools["llm"].kinds) == MAX_KINDS
    assert len(subject._pools["llm"].pasts) == MAX_KINDS


@settings(max_examples=tries(10))
@given(st.integers(0, 2**32), st.sampled_from([1, 3, 8]))
def test_alike_replicas_are_not_named(seed: int, per_s: int) -> None:
    """Whatever the seed: durations that vary as those of real engines do."""
    assert run(slowness("a", "a", "a"), (0.2, 0.2, 0.25), per_s, 300, seed) is None
