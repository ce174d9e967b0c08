"""Whether a replica is safe to stop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.applications.traffic.stopping import (
    MAX_NAMED,
    RECENT_S,
    PickerView,
    ReplicaUse,
    waits_for,
)

IDLE = PickerView("p1", 0.1, current=True)
OTHER = IDLE._replace(name="p2")
USE = ReplicaUse("r1", (), (), (IDLE, OTHER), 2)


def test_it_is_safe_when_all_ledgers_are_at_zero() -> None:
    """All pickers of the fleet have said so since they leave it alone."""
    assert waits_for(USE) == ()


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (USE._replace(pools=("llm",)), "r1 takes new requests in pool llm: drain it"),
        (USE._replace(drawn=("Envoys have not been told yet",)), "Envoys have not been told yet"),
        (
            USE._replace(pickers=(IDLE, OTHER._replace(in_flight=1))),
            "picker p2: 1 request in flight",
        ),
        (
            USE._replace(pickers=(IDLE._replace(sequences=3), OTHER)),
            "picker p1: 3 open sequences",
        ),
        (
            USE._replace(pickers=(IDLE, OTHER._replace(age_s=None))),
            "picker p2 has not reported yet",
        ),
        (
            USE._replace(pickers=(IDLE, OTHER._replace(age_s=RECENT_S + 1))),
            "picker p2 has not reported for 16 s",
        ),
        (
            USE._replace(pickers=(IDLE, OTHER._replace(current=False))),
            "picker p2 has not reported since the last change of the fleet",
        ),
        (
            USE._replace(pickers=(IDLE,), gone=("p2", "p0")),
            "picker p2 is not connected: what it has in flight is not known",
        ),
        (
            USE._replace(pickers=(IDLE,)),
            "1 of 2 pickers not connected: what is in flight is not known",
        ),
        (
            USE._replace(pickers=(), expected=0),
            "no picker is connected: what is in flight is not known",
        ),
    ],
)
def test_each_reason_is_named(use: ReplicaUse, said: str) -> None:
    """One at a time, in words that say who is waited for."""
    assert waits_for(use) == (said,)


def test_a_picker_beside_the_fleet_s_counts() -> None:
    """More may be connected than the fleet has addresses of, as while they are replaced."""
    assert waits_for(USE._replace(expected=1)) == ()
    assert waits_for(USE._replace(expected=1, gone=("p0",))) == ()


def test_reasons_are_bounded() -> None:
    """A large fleet of pickers does not fill the answer."""
    busy = tuple(IDLE._replace(name=f"p{n}", in_flight=1) for n in range(MAX_NAMED + 1))
    assert len(waits_for(USE._replace(pickers=busy))) == MAX_NAMED


VIEWS = st.builds(
    PickerView,
    st.sampled_from(["p1", "p2", "p3"]),
    st.none() | st.floats(0, 30),
    st.booleans(),
    st.integers(0, 2),
    st.integers(0, 2),
)


@given(
    st.lists(VIEWS, max_size=3, unique_by=lambda each: each.name),
    st.integers(0, 4),
    st.lists(st.sampled_from(["p1", "p2", "p3", "p4"]), unique=True),
)
def test_unknown_is_never_zero(pickers: list[PickerView], expected: int, gone: list[str]) -> None:
    """It is safe only where enough pickers have all said zero lately."""
    safe = not waits_for(ReplicaUse("r1", (), (), pickers, expected, gone))
    zeros = [
        each
        for each in pickers
        if each.age_s is not None
        and each.age_s <= RECENT_S
        and each.current
        and not each.in_flight
        and not each.sequences
    ]
    assert safe == (len(zeros) == len(pickers) >= max(1, expected))
