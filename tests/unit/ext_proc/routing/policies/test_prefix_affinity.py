"""prefix-affinity: longest match within bounded loads."""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.policies.prefix_affinity import PrefixAffinity
from ext_proc.routing.values.ticket import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.candidates import SchedulingContext


def ranking(made: SchedulingContext) -> list[int]:
    prices = PrefixAffinity().prices(made)
    return sorted(range(len(prices)), key=prices.__getitem__)


def test_the_longest_match_wins(context: Callable[..., SchedulingContext]) -> None:
    """More cached blocks win over less load, within the bound."""
    made = context(3, matched=[2, 9, 0], blocks=10, pending=[0, 1, 0], work=[0, 5e4, 0])
    assert ranking(made) == [1, 0, 2]
    assert PrefixAffinity().picked(made, 1) == "prefix"


def test_load_decides_between_equal_matches(context: Callable[..., SchedulingContext]) -> None:
    """Load counts uncached tokens in flight per strength, not only requests."""
    made = context(
        3, matched=[4, 4, 4], blocks=5, pending=[1, 1, 1], work=[900, 100, 900], strength=[1, 1, 4]
    )
    assert ranking(made) == [2, 1, 0]


def test_without_a_match_the_least_loaded_wins(context: Callable[..., SchedulingContext]) -> None:
    """An uncached prompt goes to the least loaded replica."""
    made = context(2, blocks=8, pending=[1, 0])
    assert ranking(made) == [1, 0]
    assert PrefixAffinity().picked(made, 1) == "least"


def test_a_replica_above_its_bound_comes_last(context: Callable[..., SchedulingContext]) -> None:
    """The holder of the prompt is not picked while its load is above the bound."""
    made = context(4, matched=[9, 0, 3, 0], blocks=10, pending=[6, 2, 2, 2])
    assert ranking(made)[0] == 2
    assert ranking(made)[-1] == 0
    assert PrefixAffinity().picked(made, 2) == "spill"


def test_the_bound_follows_strength(context: Callable[..., SchedulingContext]) -> None:
    """A replica of twice the strength may hold twice the requests."""
    made = context(2, matched=[5, 0], blocks=5, pending=[8, 3], strength=[3.0, 1.0])
    assert ranking(made)[0] == 0
    assert ranking(made.changed(strength=[1.0, 3.0]))[0] == 1


def test_shared_blocks_give_no_preference(context: Callable[..., SchedulingContext]) -> None:
    """Only blocks beyond the shared prefix give a preference."""
    made = context(3, matched=[4, 0, 0], blocks=6, shared=4, pending=[1, 0, 0])
    assert ranking(made)[-1] == 0
    assert PrefixAffinity().picked(made, 1) == "least"
    deeper = made.changed(matched=[5, 4, 0])
    assert ranking(deeper)[0] == 0


def test_blocks_of_several_conversations_prefer_idle_replicas_only(
    context: Callable[..., SchedulingContext],
) -> None:
    """The holder of a system prompt takes no second request; a conversation's holder does."""
    made = context(3, matched=[4, 0, 0], blocks=6, branched=4, pending=[0, 0, 0])
    assert ranking(made)[0] == 0
    assert ranking(made.changed(pending=[1, 0, 0]))[-1] == 0
    assert ranking(made.changed(matched=[5, 0, 0], pending=[1, 0, 0]))[0] == 0


@pytest.mark.parametrize("depth", [1, 4, 8])
def test_sessions_behind_one_system_prompt_spread(build: Any, depth: int) -> None:
    """With one request at a time, no replica gets twice the mean, and turns keep their replica."""
    router = build.router(build.pool(8, policy="prefix-affinity"))
    system = tuple(range(1, depth + 1))
    homes: Counter[str] = Counter()
    for session in range(800):
        first = (*system, 1000 * (session + 1))
        got = []
        for turn in range(2):
            blocks = (*first, *range(first[-1] + 1, first[-1] + 1 + turn))
            now = session + turn / 2
            decision = router.decide(build.request(blocks), now, 0.0)
            assert isinstance(decision, Decision)
            assert decision.ticket is not None
            router.settle(decision.ticket, Outcome.DONE, now + 0.25)
            got.append(decision.ticket.endpoint.id)
        assert got[0] == got[1]
        homes[got[0]] += 1
    assert max(homes.values()) < 200
    assert len(homes) == 8


LOADS = st.lists(st.tuples(st.integers(0, 30), st.floats(0.05, 8)), min_size=1, max_size=8)


@given(loads=LOADS, load_factor=st.floats(1, 3))
def test_the_bound_is_that_of_bounded_loads(
    context: Callable[..., SchedulingContext], loads: list[tuple[int, float]], load_factor: float
) -> None:
    """No replica above ``max(2, ceil(factor * (all + 1) * share))`` precedes one within it."""
    pending, strength = [p for p, _ in loads], [s for _, s in loads]
    made = context(
        len(loads), pending=pending, strength=strength, blocks=3, load_factor=load_factor
    )
    prices = PrefixAffinity().prices(made)
    share = load_factor * (sum(pending) + 1) / sum(strength)
    within = [p + 1 <= max(2, ceil(share * s - 1e-9)) for p, s in loads]
    assert any(within)
    for price, inside in zip(prices, within, strict=True):
        assert (price < 4.0) == inside
