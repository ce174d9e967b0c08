"""Provisional inserts: they match at once, evict nothing confirmed, and can leave no trace."""

from __future__ import annotations

import tracemalloc

import pytest

from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.cache.prefix_uses import (
    DOUBTS,
    SHARED_TENANT,
    SHARES,
    TRIAL_BLOCKS,
    TRIAL_SHARES,
)
from support.prefix_caches import A


def test_it_matches_at_once_and_leaves_without_a_trace() -> None:
    """A prompt that follows at once goes where the one before went; a refused one was nowhere."""
    index = PrefixIndex()
    trial = index.provisional.propose(A, (1, 2, 3), 0.0)
    assert index.match_all((1, 2, 3, 4)) == {A: 3}
    index.table.withdraw(trial)
    assert (index.match_all((1, 2, 3)), index.blocks, index.held(A)) == ({}, 0, 0)


def test_what_is_confirmed_stays() -> None:
    """A verdict counts once."""
    index = PrefixIndex()
    trial = index.provisional.propose(A, (1, 2, 3), 0.0)
    index.provisional.confirm(trial, 1.0)
    index.table.withdraw(trial)
    assert index.match_all((1, 2, 3)) == {A: 3}
    assert (index.held(A), index.provisional.count(A)) == (3, 0)


@pytest.mark.parametrize(
    ("bound", "provisional"),
    [
        (100, 100),
        (TRIAL_BLOCKS, TRIAL_BLOCKS),
        (TRIAL_SHARES * TRIAL_BLOCKS, TRIAL_BLOCKS),
        (20 * TRIAL_BLOCKS, 2 * TRIAL_BLOCKS),
    ],
)
def test_the_bound_of_provisional_blocks(bound: int, provisional: int) -> None:
    """A tenth of an endpoint's bound, but one whole prompt has room."""
    index = PrefixIndex(max_blocks=bound)
    most = 0
    for number in range(3 * provisional // 10):
        index.provisional.propose(A, tuple(range(number * 10, number * 10 + 10)), 0.0)
        most = max(most, index.provisional.count(A))
    assert provisional * 7 // 8 <= index.provisional.count(A) <= most <= provisional


def test_a_tenant_above_its_share_is_displaced_first() -> None:
    """The oldest provisional blocks are another tenant's, which keeps them."""
    index = PrefixIndex(max_blocks=80)
    index.provisional.propose(A, (-1, -2), 0.0, tenant=5)
    for number in range(100):
        index.provisional.propose(A, (number,), 0.0, tenant=6)
    assert index.match_all((-1, -2)) == {A: 2}


def test_a_long_row_of_prompts_ends_with_the_last() -> None:
    """Each continues the one before; all are refused in order, and the row is not a recursion."""
    index = PrefixIndex(max_blocks=100_000)
    chain = tuple(range(3_000))
    trials = [
        index.provisional.propose(A, chain[: length + 1], 0.0) for length in range(0, 3_000, 2)
    ]
    for trial in trials[:-1]:
        index.table.withdraw(trial)
    assert index.provisional.count(A) == len(trials[-1].blocks)
    index.table.withdraw(trials[-1])
    assert index.blocks == 0


def test_a_repeated_prompt_above_a_lowered_bound_is_cut() -> None:
    """Its first blocks are kept, as those of any prompt that is longer than the bound."""
    index = PrefixIndex()
    index.insert(A, (1, 2, 3), 0.0)
    trial = index.provisional.propose(A, (1, 2, 3), 1.0, held=3)
    index.limit(A, 2, 600.0)
    index.provisional.confirm(trial, 2.0)
    assert (index.match_all((1, 2, 3)), index.held(A)) == ({A: 2}, 2)


def test_an_endpoint_is_not_purged_for_age_while_a_repeated_prompt_runs() -> None:
    """The answer of a long request still counts, though its blocks expired meanwhile."""
    index = PrefixIndex(ttl_s=10.0)
    index.insert(A, (1, 2), 0.0)
    trial = index.provisional.propose(A, (1, 2), 9.0, held=2)
    index.expire(20.0)
    assert index.match_all((1, 2)) == {}
    index.provisional.confirm(trial, 21.0)
    assert index.match_all((1, 2)) == {A: 2}


def test_a_purge_ends_provisional_inserts() -> None:
    """Verdicts that come after a restart change nothing, and the memory is freed."""
    index = PrefixIndex()
    trials = [index.provisional.propose(A, (1, 2), 0.0), index.provisional.propose(A, (1, 5), 0.0)]
    index.insert(A, (7,), 0.0)
    repeated = index.provisional.propose(A, (7,), 0.0, held=1)
    index.purge(A)
    assert index.match_all((1, 2)) == {}
    index.provisional.confirm(trials[0], 1.0)
    index.provisional.confirm(repeated, 1.0)
    index.table.withdraw(trials[1])
    index.expire(10.0)
    assert (index.blocks, index.held(A)) == (0, 0)


def test_a_lowered_bound_is_kept_by_both() -> None:
    """Confirmed and provisional blocks above it are dropped at once."""
    index = PrefixIndex()
    index.insert(A, tuple(range(10)), 0.0)
    trial = index.provisional.propose(A, tuple(range(100, 110)), 0.0)
    index.limit(A, 4, 600.0)
    assert (index.held(A), index.provisional.count(A)) == (4, 0)
    index.provisional.confirm(trial, 1.0)
    assert index.match_all(tuple(range(100, 110))) == {A: 4}


def test_refused_continuations_make_no_prefix_common() -> None:
    """A prefix counts as worth a copy everywhere by its continuations that were answered."""
    index = PrefixIndex()
    index.insert(A, (1, 2), 0.0)
    for number in range(100):
        index.table.withdraw(index.provisional.propose(A, (1, 2, 100 + number), 0.0))
    assert index.table.shared_depth((1, 2), 2, 2) == 0
    for number in range(4):
        index.provisional.confirm(index.provisional.propose(A, (1, 2, 100 + number), 0.0), 0.0)
    assert index.table.shared_depth((1, 2), 2, 2) == 2


def test_refused_prompts_do_not_discredit_a_reporting_endpoint() -> None:
    """Its engine never stores what it refused, and so never reports it."""
    index = PrefixIndex()
    index.reports.set_reporting(A, complete=True)
    for number in range(2 * DOUBTS):
        index.table.withdraw(index.provisional.propose(A, (number,), 0.0))
    assert index.is_exact(A)
    index.reports.store(A, 0, (7,), (1,))
    trial = index.provisional.propose(A, (1, 2), 0.0)
    index.reports.store(A, 0, (8,), (2,), 1)
    index.table.withdraw(trial)
    assert index.match_all((1, 2)) == {A: 2}


# --- Shares of tenants --------------------------------------------------------------------------


def filled(index: PrefixIndex, tenants: int, prompts: int, length: int) -> None:
    """Insert prompts of tenants 1, 2, ... in turn; the first is the oldest."""
    for number in range(prompts):
        for tenant in range(1, tenants + 1):
            start = tenant * 1_000_000 + number * 1_000
            index.insert(A, tuple(range(start, start + length)), 0.0, tenant)


def held_by(index: PrefixIndex) -> dict[int, int]:
    """Return the blocks of each tenant on ``A``."""
    return {key: each.live for key, each in index.table.holders[A].kept.tenants.items()}


def test_a_tenant_that_floods_gives_way_to_itself() -> None:
    """Answered prompts of one tenant do not push out those of others beyond its share."""
    index = PrefixIndex(max_blocks=400)
    filled(index, tenants=3, prompts=10, length=10)
    for number in range(1_000):
        index.insert(A, (10_000_000 + number,), 1.0, 9)
    assert held_by(index) == {1: 100, 2: 100, 3: 100, 9: 400 // SHARES}


def test_a_tenant_alone_may_have_all() -> None:
    """A share limits only while others have blocks."""
    index = PrefixIndex(max_blocks=400)
    for number in range(1_000):
        index.insert(A, (number,), 0.0, 9)
    assert held_by(index) == {9: 400}


def test_a_tenant_that_has_all_makes_room_for_others() -> None:
    """What others insert evicts its blocks first, however young it keeps them by a flood."""
    index = PrefixIndex(max_blocks=400)
    for number in range(400):
        index.insert(A, (number,), 0.0, 9)
    for number in range(2_000):
        index.insert(A, (1_000 + number,), 1.0, 9)
        if number < 350:
            index.insert(A, (10_000 + number,), 1.0, number % 5)
    assert held_by(index)[9] == 400 // SHARES
    assert sum(held_by(index).values()) == 400


def test_a_common_prefix_is_not_evicted_with_a_tenant() -> None:
    """A tenant that gives way to itself leaves the system prompt that it shares with others."""
    index = PrefixIndex(max_blocks=100)
    common = tuple(range(1, 21))
    index.insert(A, (*common, 101, 102), 0.0, 1)
    index.insert(A, (*common, 201, 202), 1.0, 2)
    for number in range(500):
        index.insert(A, (*common, 1_000 + number), 2.0, 2)
    for number in range(500):
        index.insert(A, (5_000 + number,), 3.0, 2)
    assert index.table.matched((*common, 101, 102), A) == 22
    assert held_by(index)[SHARED_TENANT] == 20


def test_tenants_take_bounded_memory() -> None:
    """A tenant per prompt of four blocks takes less than 400 bytes per block, and goes with it."""
    index = PrefixIndex(max_blocks=4_000)
    tracemalloc.start()
    for number in range(5_000):
        index.insert(A, tuple(range(number * 4, number * 4 + 4)), 0.0, number + 1)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(index.table.holders[A].kept.tenants) == 1_000
    assert used / 4_000 < 400
