"""session-sticky: a session stays on its replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.policies.session_sticky import IDLE_S, SessionSticky
from ext_proc.routing.values.request import Features, Form, Request

from .test_consistent_hash import without

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.candidates import SchedulingContext


def keyed(session: str | None) -> Request:
    return Request("llm", None, "http", Features(Form.GENERATE, session=session))


def pick(policy: SessionSticky, made: SchedulingContext) -> tuple[str, str]:
    prices = list(policy.prices(made))
    index = prices.index(min(prices))
    return made.candidates[index].key.id, policy.picked(made, index)


def test_a_session_stays_whatever_the_load(context: Callable[..., SchedulingContext]) -> None:
    """It goes to the least loaded replica first, and then stays there."""
    policy, made = SessionSticky(), context(3, pending=[1, 0, 1], request=keyed("a"))
    assert pick(policy, made) == ("r1", "least")
    assert pick(policy, made.changed(pending=[0, 90, 0])) == ("r1", "session")
    assert pick(policy, made.changed(pending=[0, 9, 9], request=keyed("b"))) == ("r0", "least")
    assert pick(policy, made.changed(pending=[0, 9, 9], request=keyed(None))) == ("r0", "least")


def test_sessions_are_forgotten(context: Callable[..., SchedulingContext]) -> None:
    """Sessions expire after the idle time, and the least recently used is evicted at the bound."""
    policy, made = SessionSticky(max_sessions=2), context(2, pending=[1, 0])
    for session in ("a", "b", "a", "c"):
        pick(policy, made.changed(request=keyed(session)))
    assert len(policy) == 2
    busy = made.changed(pending=[0, 1])
    assert pick(policy, busy.changed(request=keyed("b"))) == ("r0", "least")
    late = busy.changed(request=keyed("c"), now=IDLE_S + 1)
    assert pick(policy, late) == ("r0", "least")


@given(
    requests=st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.lists(st.floats(0, 99), min_size=4, max_size=4),
            st.sets(st.integers(0, 3), max_size=3),
        ),
        max_size=40,
    )
)
def test_only_a_lost_replica_moves_a_session(
    context: Callable[..., SchedulingContext], requests: list[tuple[str, list[float], set[int]]]
) -> None:
    """Load never moves a session, and a moved session stays moved."""
    policy, homes = SessionSticky(), dict[str, str]()
    for session, pending, gone in requests:
        made = context(4, pending=pending, request=keyed(session))
        for candidate in sorted(gone, reverse=True):
            made = without(made, candidate)
        made = made.changed(pending=[each for at, each in enumerate(pending) if at not in gone])
        name, reason = pick(policy, made)
        if homes.get(session) in {candidate.key.id for candidate in made.candidates}:
            assert (name, reason) == (homes[session], "session")
        homes[session] = name


def test_a_session_with_a_replica_is_not_moved_by_chance(
    context: Callable[..., SchedulingContext],
) -> None:
    """An experiment on a failing replica takes new sessions only."""
    policy, made = SessionSticky(), context(3, pending=[1, 0, 1], request=keyed("a"))
    assert not policy.stays(made)
    pick(policy, made)
    assert policy.stays(made)
    assert not policy.stays(made.changed(request=keyed(None)))
