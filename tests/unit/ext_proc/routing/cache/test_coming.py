"""Blocks that a replica may still have to compute: provisional ones at the end of a match."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.values.pool import EndpointKey
from support.tries import tries

if TYPE_CHECKING:
    from ext_proc.routing.cache.prefix_uses import RepeatedInsert, Trial

A, B = (EndpointKey(name, 1) for name in "ab")


def test_blocks_are_coming_until_their_answer_begins() -> None:
    """The next prompt with them may find them, or come too early."""
    index = PrefixIndex()
    trial = index.provisional.propose(A, (1, 2, 3), 0.0)
    assert index.coming(A, (1, 2, 3, 4), 3) == 3
    index.provisional.confirm(trial, 1.0)
    assert index.coming(A, (1, 2, 3, 4), 3) == 0


def test_confirmed_blocks_before_them_are_not_coming() -> None:
    """A step of a conversation adds a few blocks to those of the step before."""
    index = PrefixIndex()
    index.insert(A, (1, 2), 0.0)
    index.provisional.propose(A, (1, 2, 3), 1.0, held=2)
    assert index.coming(A, (1, 2, 3, 4), 3) == 1
    assert index.coming(A, (1, 2, 7), 2) == 0


def test_prompts_in_a_row_wait_for_all_before_them() -> None:
    """The third prompt needs what the first two add, until their answers begin."""
    index = PrefixIndex()
    first = index.provisional.propose(A, (1, 2), 0.0)
    second = index.provisional.propose(A, (1, 2, 3), 0.0, held=2)
    assert index.coming(A, (1, 2, 3, 4), 3) == 3
    index.provisional.confirm(first, 1.0)
    assert index.coming(A, (1, 2, 3, 4), 3) == 1
    index.provisional.confirm(second, 1.0)
    assert index.coming(A, (1, 2, 3, 4), 3) == 0


def test_a_repeated_prompt_waits_for_the_first() -> None:
    """It adds nothing itself, and so has nothing of its own that a third could wait for."""
    index = PrefixIndex()
    first = index.provisional.propose(A, (1, 2), 0.0)
    index.provisional.propose(A, (1, 2), 0.0, held=2)
    assert index.coming(A, (1, 2), 2) == 2
    index.provisional.confirm(first, 1.0)
    assert index.coming(A, (1, 2), 2) == 0


def test_a_prompt_that_was_left_has_computed_nothing() -> None:
    """Blocks that stay because a later prompt needs them are computed by that one."""
    index = PrefixIndex()
    first = index.provisional.propose(A, (1, 2), 0.0)
    index.provisional.propose(A, (1, 2, 3), 0.0, held=2)
    index.table.withdraw(first)
    assert index.coming(A, (1, 2, 3), 3) == 3


def test_what_another_replica_computes_is_not_coming_here() -> None:
    """Each replica has its own cache."""
    index = PrefixIndex()
    index.insert(A, (1, 2), 0.0)
    index.provisional.propose(B, (1, 2, 3), 0.0)
    index.provisional.propose(A, (9,), 0.0)
    assert index.coming(A, (1, 2), 2) == 0
    assert index.coming(B, (1, 2, 3), 3) == 3


def test_nothing_is_coming_at_a_replica_that_reports_its_cache() -> None:
    """Its reports say what it holds."""
    index = PrefixIndex()
    index.reports.set_reporting(A, complete=True)
    index.provisional.propose(A, (1, 2), 0.0)
    assert index.coming(A, (1, 2), 2) == 0


def test_nothing_is_coming_at_an_unknown_replica() -> None:
    """It holds nothing."""
    assert PrefixIndex().coming(A, (1,), 1) == 0


CHAINS = (
    (1,),
    (1, 2),
    (1, 2, 3),
    (1, 2, 3, 4),
    (1, 2, 5),
    (1, 2, 5, 6),
    (7, 8),
    (7, 8, 9),
)
"""Prompts that extend and leave each other; each number stands for all before it."""


@settings(max_examples=tries(200), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, len(CHAINS) - 1)), max_size=24))
def test_only_what_no_answer_has_confirmed_is_coming(steps: list[tuple[int, int]]) -> None:
    """Never fewer blocks than are unconfirmed, and none where all are confirmed."""
    index = PrefixIndex()
    waiting: list[tuple[Trial | RepeatedInsert, tuple[int, ...]]] = []
    confirmed: set[int] = set()
    for now, (kind, number) in enumerate(steps):
        if kind == 0 or not waiting:
            chain = CHAINS[number]
            waiting.append((index.provisional.propose(A, chain, float(now)), chain))
        else:
            trial, chain = waiting.pop(number % len(waiting))
            if kind == 1:
                index.provisional.confirm(trial, float(now))
                confirmed |= set(chain)
            else:
                index.table.withdraw(trial)
        for chain in CHAINS:
            held = index.match_all(chain).get(A, 0)
            if held:
                coming = index.coming(A, chain, held)
                unconfirmed = [block for block in chain[:held] if block not in confirmed]
                assert len(unconfirmed) <= coming <= held
                assert bool(coming) == bool(unconfirmed)
