"""The states of replicas, merged over pickers, and their words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.applications.traffic.replicas import (
    STALE_S,
    UNKNOWN,
    Condition,
    ReplicaBook,
    Reported,
    State,
    merge,
    words,
)

R1 = ("llm", "r1")
CONDITION = st.builds(
    Condition,
    st.sampled_from(["ejected", "frozen", "not-ready", "silent"]),
    st.sampled_from(["", "5 errors"]),
    st.none() | st.sampled_from([1.0, 5.0]),
    st.integers(1, 3),
    st.none() | st.sampled_from([2.0, 7.0]),
)
CONDITIONS = st.lists(CONDITION, max_size=3, unique_by=lambda each: each.name).map(
    lambda found: tuple(sorted(found))
)
STATE = st.builds(
    State,
    CONDITIONS,
    st.none() | st.sampled_from([0.5, 3.0]),
    st.none() | st.sampled_from([10, 40]),
    st.integers(1, 3),
    CONDITIONS,
)


@given(STATE, STATE, STATE)
def test_the_merge_is_associative_and_commutative(one: State, two: State, three: State) -> None:
    """The order of the pickers must not matter."""
    assert merge(one, two) == merge(two, one)
    assert merge(merge(one, two), three) == merge(one, merge(two, three))


def test_a_picker_that_falls_silent_ages_out() -> None:
    """Its last report says nothing of now; the time left and the ages go on meanwhile."""
    now = [0.0]
    book = ReplicaBook(lambda: now[0])
    ejected = Condition("ejected", "5 errors", 20.0)
    book.take("p", {R1: Reported((ejected,), 1.0)})
    now[0] = STALE_S
    (seen,) = book.merged().values()
    assert seen.conditions[0].left_s == 5.0
    assert seen.reading_age_s == 1.0 + STALE_S
    assert book.ages() == {"p": STALE_S}
    now[0] += 0.1
    assert book.merged() == {}


def test_a_picker_whose_stream_ends_is_forgotten() -> None:
    """What a dead picker found must not stay."""
    book = ReplicaBook(lambda: 0.0)
    book.take("p", {R1: Reported()})
    book.gone("p")
    book.gone("p")
    assert book.merged() == {}


def test_workers_of_one_picker_count_once() -> None:
    """However many of them report the same, they are one picker."""
    now = [0.0]
    book = ReplicaBook(lambda: now[0])
    sick = Reported((Condition("not-ready"),))
    book.take("p.w0", {R1: sick}, "p")
    now[0] = 1.0
    book.take("p.w1", {R1: sick}, "p")
    book.take("q", {R1: Reported()}, "")
    (seen,) = book.merged().values()
    assert seen.pickers == 2
    assert seen.conditions == (Condition("not-ready", pickers=1),)
    assert seen.left_alone


def test_what_one_worker_sees_stays_while_the_others_report() -> None:
    """Only the workers with requests on a frozen replica notice it; the others call it well."""
    now = [0.0]
    book = ReplicaBook(lambda: now[0])
    frozen = Reported((Condition("ejected", left_s=20.0), Condition("frozen")), 1.0, 40)
    for at, worker, reported in (
        (0.0, "p.w0", frozen),
        (1.0, "p.w1", Reported((), 2.0)),
        (2.0, "p.w2", Reported((Condition("silent"),), 0.5)),
    ):
        now[0] = at
        book.take(worker, {R1: reported}, "p")
        (seen,) = book.merged().values()
        assert {"ejected", "frozen"} <= {each.name for each in seen.conditions}
        assert (seen.pickers, {each.pickers for each in seen.conditions}) == (1, {1})
        assert seen.left_alone
    assert seen.reading_age_s == 3.0
    book.gone("p.w0")
    (seen,) = book.merged().values()
    assert not seen.left_alone


def test_one_picker_of_three_does_not_make_a_replica_unusable() -> None:
    """A picker whose own network is broken leaves replicas alone that serve all others."""
    state = State((Condition("ejected", pickers=1),), pickers=3)
    assert not state.left_alone
    assert not State((Condition("silent", pickers=3),), pickers=3).left_alone
    assert not UNKNOWN.left_alone


@pytest.mark.parametrize(
    ("conditions", "more", "said"),
    [
        ((), {}, "in use"),
        ((), {"ramp_percent": 40}, "ramping 40 %"),
        ((Condition("silent"),), {}, "silent"),
        ((Condition("silent"),), {"ramp_percent": 40}, "silent"),
        ((Condition("not-ready"),), {}, "not ready"),
        ((Condition("ejected", "5 errors", 12.3),), {}, "ejected 12 s more: 5 errors"),
        (
            (Condition("dead-backend"), Condition("ejected", "5 errors", 12.3)),
            {},
            "ejected 12 s more: 5 errors",
        ),
        (
            (Condition("ejected", "no sign of life", 4.0), Condition("frozen")),
            {},
            "frozen 4 s more",
        ),
        ((Condition("half-open", "5 errors"),), {}, "half open: 5 errors"),
        ((Condition("low-gpu-memory", "3 % is free"),), {}, "low gpu memory: 3 % is free"),
        ((Condition("told", "ejected"),), {}, "told by other pickers: ejected"),
        ((Condition("not-ready"),), {"pickers": 3}, "not ready (1 of 3 pickers)"),
    ],
)
def test_a_state_in_words(conditions: tuple[Condition, ...], more: dict, said: str) -> None:
    """What operators read in the column STATE."""
    state = State(conditions, **{"pickers": 1, **more})
    assert words(state, draining=False, held=False, in_flight=3) == said


def test_a_drain_says_what_is_left() -> None:
    """Whatever else a replica has, its drain is what operators wait for."""
    sick = State((Condition("not-ready"),), pickers=1)
    assert words(sick, draining=True, held=False, in_flight=3) == "draining, 3 left"
    assert words(sick, draining=True, held=False, in_flight=None) == "draining"
    assert words(UNKNOWN, draining=False, held=True, in_flight=0) == "held"
