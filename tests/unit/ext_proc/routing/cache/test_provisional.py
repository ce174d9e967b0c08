"""Provisional inserts: they match at once, evict nothing confirmed, and can leave no trace."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.routing.cache.exact_index import ExactIndex
from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.cache.prefix_uses import (
    DOUBTS,
    SHARED_TENANT,
    SHARES,
    TRIAL_BLOCKS,
    TRIAL_SHARES,
    SharedUse,
)
from ext_proc.routing.cache.provisional import ProvisionalIndex
from ext_proc.routing.values.pool import EndpointKey

if TYPE_CHECKING:
    from ext_proc.routing.cache.prefix_uses import RepeatedInsert, Trial

A, B = (EndpointKey(name, 1) for name in "ab")


def test_it_matches_at_once_and_leaves_without_a_trace() -> None:
    """A prompt that follows at once goes where the one before went; a refused one was nowhere."""
    index = ProvisionalIndex()
    trial = index.propose(A, (1, 2, 3), 0.0)
    assert index.match_all((1, 2, 3, 4)) == {A: 3}
    index.withdraw(trial)
    assert (index.match_all((1, 2, 3)), index.blocks, index.held(A)) == ({}, 0, 0)


def test_what_is_confirmed_stays() -> None:
    """A verdict counts once."""
    index = ProvisionalIndex()
    trial = index.propose(A, (1, 2, 3), 0.0)
    index.confirm(trial, 1.0)
    index.withdraw(trial)
    assert index.match_all((1, 2, 3)) == {A: 3}
    assert (index.held(A), index.provisional(A)) == (3, 0)


def test_a_refused_continuation_leaves_the_conversation() -> None:
    """Blocks that the prompt shares with confirmed ones stay confirmed, and as old as before."""
    index = ProvisionalIndex(max_blocks=4)
    index.insert(A, (1, 2), 0.0)
    index.insert(A, (7,), 1.0)
    index.withdraw(index.propose(A, (1, 2, 3), 2.0))
    index.insert(A, (8, 9), 3.0)
    assert index.match_all((1, 2)) == {A: 1}
    assert index.match_all((7,)) == {A: 1}


def test_nothing_confirmed_is_evicted() -> None:
    """A full index takes provisional blocks in addition, up to their own bound."""
    index = ProvisionalIndex(max_blocks=4)
    index.insert(A, (1, 2, 3, 4), 0.0)
    for number in range(100):
        index.propose(A, (100 + number, 200 + number), 1.0)
        assert index.provisional(A) <= 4
    assert index.match_all((1, 2, 3, 4)) == {A: 4}


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
    index = ProvisionalIndex(max_blocks=bound)
    most = 0
    for number in range(3 * provisional // 10):
        index.propose(A, tuple(range(number * 10, number * 10 + 10)), 0.0)
        most = max(most, index.provisional(A))
    assert provisional * 7 // 8 <= index.provisional(A) <= most <= provisional


def test_a_displaced_insert_can_still_be_confirmed() -> None:
    """At the bound the oldest is no longer matched, but its answer may come."""
    index = ProvisionalIndex(max_blocks=4)
    first = index.propose(A, (1, 2), 0.0)
    index.propose(A, (3, 4, 5), 0.0)
    assert index.match_all((1, 2)) == {}
    index.confirm(first, 1.0)
    assert index.match_all((1, 2)) == {A: 2}


def test_a_tenant_above_its_share_is_displaced_first() -> None:
    """The oldest provisional blocks are another tenant's, which keeps them."""
    index = ProvisionalIndex(max_blocks=80)
    index.propose(A, (-1, -2), 0.0, tenant=5)
    for number in range(100):
        index.propose(A, (number,), 0.0, tenant=6)
    assert index.match_all((-1, -2)) == {A: 2}


def test_another_prompt_keeps_what_it_leans_on() -> None:
    """Two requests with one document: the first is refused, the second is not."""
    index = ProvisionalIndex()
    first = index.propose(A, (1, 2, 3), 0.0)
    second = index.propose(A, (1, 2, 9), 0.0)
    index.withdraw(first)
    assert index.match_all((1, 2, 3)) == {A: 2}
    assert index.match_all((1, 2, 9)) == {A: 3}
    index.withdraw(second)
    assert index.blocks == 0


def test_a_long_row_of_prompts_ends_with_the_last() -> None:
    """Each continues the one before; all are refused in order, and the row is not a recursion."""
    index = ProvisionalIndex(max_blocks=100_000)
    chain = tuple(range(3_000))
    trials = [index.propose(A, chain[: length + 1], 0.0) for length in range(0, 3_000, 2)]
    for trial in trials[:-1]:
        index.withdraw(trial)
    assert index.provisional(A) == len(trials[-1].blocks)
    index.withdraw(trials[-1])
    assert index.blocks == 0


def test_a_repeated_prompt_is_younger_only_once_it_is_answered() -> None:
    """A prompt that is confirmed already changes nothing until its own answer begins."""
    index = ProvisionalIndex(max_blocks=4)
    for start, repeats in ((1, False), (10, True)):
        first, second = (start, start + 1), (start + 2, start + 3)
        index.insert(A, first, 0.0)
        index.insert(A, second, 1.0)
        trial = index.propose(A, first, 2.0, held=2)
        index.confirm(trial, 3.0) if repeats else index.withdraw(trial)
        index.withdraw(trial)
        index.insert(A, (start + 4, start + 5), 4.0)
        assert index.match_all(second if repeats else first) == {}
        index.purge(A)


def test_a_repeated_prompt_that_was_evicted_meanwhile_is_held_again() -> None:
    """Its answer says that the replica has it, whatever room others took before."""
    index = ProvisionalIndex(max_blocks=4)
    index.insert(A, (1, 2), 0.0)
    trial = index.propose(A, (1, 2), 1.0, held=2)
    index.insert(A, (3, 4, 5, 6), 2.0)
    assert index.match_all((1, 2)) == {}
    index.confirm(trial, 3.0)
    assert index.match_all((1, 2)) == {A: 2}


def test_a_repeated_prompt_above_a_lowered_bound_is_cut() -> None:
    """Its first blocks are kept, as those of any prompt that is longer than the bound."""
    index = ProvisionalIndex()
    index.insert(A, (1, 2, 3), 0.0)
    trial = index.propose(A, (1, 2, 3), 1.0, held=3)
    index.limit(A, 2, 600.0)
    index.confirm(trial, 2.0)
    assert (index.match_all((1, 2, 3)), index.held(A)) == ({A: 2}, 2)


def test_an_endpoint_is_not_purged_for_age_while_a_repeated_prompt_runs() -> None:
    """The answer of a long request still counts, though its blocks expired meanwhile."""
    index = ProvisionalIndex(ttl_s=10.0)
    index.insert(A, (1, 2), 0.0)
    trial = index.propose(A, (1, 2), 9.0, held=2)
    index.expire(20.0)
    assert index.match_all((1, 2)) == {}
    index.confirm(trial, 21.0)
    assert index.match_all((1, 2)) == {A: 2}


def test_a_purge_ends_provisional_inserts() -> None:
    """Verdicts that come after a restart change nothing, and the memory is freed."""
    index = ProvisionalIndex()
    trials = [index.propose(A, (1, 2), 0.0), index.propose(A, (1, 5), 0.0)]
    index.insert(A, (7,), 0.0)
    repeated = index.propose(A, (7,), 0.0, held=1)
    index.purge(A)
    assert index.match_all((1, 2)) == {}
    index.confirm(trials[0], 1.0)
    index.confirm(repeated, 1.0)
    index.withdraw(trials[1])
    index.expire(10.0)
    assert (index.blocks, index.held(A)) == (0, 0)


def test_a_lowered_bound_is_kept_by_both() -> None:
    """Confirmed and provisional blocks above it are dropped at once."""
    index = ProvisionalIndex()
    index.insert(A, tuple(range(10)), 0.0)
    trial = index.propose(A, tuple(range(100, 110)), 0.0)
    index.limit(A, 4, 600.0)
    assert (index.held(A), index.provisional(A)) == (4, 0)
    index.confirm(trial, 1.0)
    assert index.match_all(tuple(range(100, 110))) == {A: 4}


def test_refused_continuations_make_no_prefix_common() -> None:
    """A prefix counts as worth a copy everywhere by its continuations that were answered."""
    index = ProvisionalIndex()
    index.insert(A, (1, 2), 0.0)
    for number in range(100):
        index.withdraw(index.propose(A, (1, 2, 100 + number), 0.0))
    assert index.shared_depth((1, 2), 2, 2) == 0
    for number in range(4):
        index.confirm(index.propose(A, (1, 2, 100 + number), 0.0), 0.0)
    assert index.shared_depth((1, 2), 2, 2) == 2


def test_refused_prompts_do_not_discredit_a_reporting_endpoint() -> None:
    """Its engine never stores what it refused, and so never reports it."""
    index = ExactIndex()
    index.set_reporting(A, complete=True)
    for number in range(2 * DOUBTS):
        index.withdraw(index.propose(A, (number,), 0.0))
    assert index.is_exact(A)
    index.store(A, 0, (7,), (1,))
    trial = index.propose(A, (1, 2), 0.0)
    index.store(A, 0, (8,), (2,), 1)
    index.withdraw(trial)
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
    return {key: each.live for key, each in index._holders[A].kept.tenants.items()}


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
    assert index.matched((*common, 101, 102), A) == 22
    assert held_by(index)[SHARED_TENANT] == 20


def test_tenants_take_bounded_memory() -> None:
    """A tenant per prompt of four blocks takes less than 400 bytes per block, and goes with it."""
    index = PrefixIndex(max_blocks=4_000)
    tracemalloc.start()
    for number in range(5_000):
        index.insert(A, tuple(range(number * 4, number * 4 + 4)), 0.0, number + 1)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(index._holders[A].kept.tenants) == 1_000
    assert used / 4_000 < 400


# --- Against reference models -------------------------------------------------------------------

PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("propose"), st.sampled_from([A, B]), PATHS, st.integers(0, 3)),
        st.tuples(st.sampled_from(["confirm", "withdraw"]), st.integers(0, 9)),
        st.tuples(st.just("insert"), st.sampled_from([A, B]), PATHS, st.integers(0, 3)),
        st.tuples(st.just("purge"), st.sampled_from([A, B])),
    ),
    max_size=40,
)


def chained(path: list[int]) -> tuple[int, ...]:
    """Return chained hashes: each covers all blocks before it."""
    return tuple(int("1" + "".join(map(str, path[: depth + 1]))) for depth in range(len(path)))


def state(index: PrefixIndex) -> dict[EndpointKey, list[tuple[float, int, list[int]]]]:
    """Return the confirmed uses of each endpoint by age, with the blocks that they own."""
    found: dict[EndpointKey, list[tuple[float, int, list[int]]]] = {}
    for key, holder in index._holders.items():
        use = holder.kept.oldest
        while use is not None:
            owned = [block for block in use.blocks if index._owner(block, holder.bit) is use]
            found.setdefault(key, []).append((use.at, use.tenant.key, owned))
            use = use.newer
    return found


class Machine:
    """An index with trials, and an index that learns only what is confirmed."""

    def __init__(self, bound: int) -> None:
        self.index = ProvisionalIndex(max_blocks=bound)
        self.confirmed = PrefixIndex(max_blocks=bound)
        self.open: list[tuple[EndpointKey, tuple[int, ...], int, Trial | RepeatedInsert]] = []
        self.claimed: list[set[int]] = []
        """By open trial: its blocks that were not confirmed since it began."""
        self.seen: set[tuple[int, ...]] = set()

    def step(self, step: tuple[object, ...], now: float) -> None:
        """Do one step in both."""
        if step[0] in {"propose", "insert"}:
            kind, key, path, tenant = step
            blocks = chained(path)
            self.seen.add(blocks)
            if kind == "insert":
                self.index.insert(key, blocks, now, tenant)
                self._confirm(key, blocks, tenant, now)
                return
            known = self.confirmed.matched(blocks, key)
            held = self.index.matched(blocks, key) if now % 3 else 0  # it may be said or not
            trial = self.index.propose(key, blocks, now, tenant, held)
            self.open.append((key, blocks, tenant, trial))
            self.claimed.append(set(blocks[known:]))
        elif step[0] == "purge":
            for index in (self.index, self.confirmed):
                index.purge(step[1])
            self._keep([each[0] != step[1] for each in self.open])
        elif self.open:
            at = step[1] % len(self.open)
            key, blocks, tenant, trial = self.open[at]
            self._keep([number != at for number in range(len(self.open))])
            if step[0] == "confirm":
                self.index.confirm(trial, now)
                self._confirm(key, blocks, tenant, now)
            else:
                self.index.withdraw(trial)

    def _confirm(self, key: EndpointKey, blocks: tuple[int, ...], tenant: int, now: float) -> None:
        self.confirmed.insert(key, blocks, now, tenant)
        for (whose, *_), claimed in zip(self.open, self.claimed, strict=True):
            if whose == key:
                claimed.difference_update(blocks)

    def _keep(self, which: list[bool]) -> None:
        self.open = [each for each, kept in zip(self.open, which, strict=True) if kept]
        self.claimed = [each for each, kept in zip(self.claimed, which, strict=True) if kept]

    def check(self) -> None:
        """Compare counts, bounds and the confirmed part."""
        index, table = self.index, self.index._table
        for key, holder in index._holders.items():
            entries = [
                each.uses.get(holder.bit) if isinstance(each, SharedUse) else each
                for each in table.values()
            ]
            owners = [each for each in entries if each is not None and each.mask == holder.bit]
            kept = sum(each.lane is holder.kept for each in owners)
            assert (kept, len(owners) - kept) == (holder.kept.count, holder.trials.count)
            assert kept <= holder.kept.max_blocks
            assert holder.trials.count <= holder.trials.max_blocks
            assert kept == sum(each.live for each in holder.kept.tenants.values())
            for blocks in self.seen:
                owned = [index._owner(block, holder.bit) for block in blocks]
                sure = [each is not None and each.lane is holder.kept for each in owned]
                assert sure == sorted(sure, reverse=True)
                assert sum(sure) == self.confirmed.matched(blocks, key)
        for blocks in self.seen:
            assert self.confirmed._match_long(blocks) == self.confirmed.match(blocks)

    def expected(self, blocks: tuple[int, ...], key: EndpointKey) -> int:
        """Return the match with the blocks of all open trials."""
        provisional: set[int] = set()
        for (whose, *_), claimed in zip(self.open, self.claimed, strict=True):
            if whose == key:
                provisional |= claimed
        depth = self.confirmed.matched(blocks, key)
        while depth < len(blocks) and blocks[depth] in provisional:
            depth += 1
        return depth

    def end(self) -> None:
        """Withdraw all: what is left is what was confirmed, and nothing after a purge."""
        for *_, trial in self.open:
            self.index.withdraw(trial)
        for blocks in self.seen:
            assert self.index.match_all(blocks) == self.confirmed.match_all(blocks)
        assert state(self.index) == state(self.confirmed)
        for key in (A, B):
            self.index.purge(key)
        self.index.expire(0.0)
        assert (self.index.blocks, len(self.index._forks), self.index._by_bit) == (0, 0, {})
        assert self.index._forks._unsure == {}


@settings(max_examples=300)
@given(STEPS)
def test_it_behaves_like_the_confirmed_index_and_the_open_prompts(
    steps: list[tuple[object, ...]],
) -> None:
    """Matches are those of confirmed prompts and of open ones, whatever ended in which order."""
    machine = Machine(1_000)
    for number, step in enumerate(steps):
        machine.step(step, float(number))
        machine.check()
        for blocks in machine.seen:
            expected = {key: machine.expected(blocks, key) for key in (A, B)}
            assert machine.index.match_all(blocks) == {k: d for k, d in expected.items() if d}
    machine.end()


@settings(max_examples=300)
@given(STEPS)
def test_at_its_bounds_it_holds_what_is_confirmed(steps: list[tuple[object, ...]]) -> None:
    """With eviction, shares and displacement, the confirmed part is that of confirmed prompts."""
    machine = Machine(7)
    for number, step in enumerate(steps):
        machine.step(step, float(number))
        machine.check()
    machine.end()


@settings(max_examples=200)
@given(STEPS, STEPS)
def test_refused_prompts_change_no_later_match(
    before: list[tuple[object, ...]], flood: list[tuple[object, ...]]
) -> None:
    """A flood that is refused leaves matches, ages and forks exactly as they were."""
    machine = Machine(7)
    for number, step in enumerate(before):
        machine.step(step, float(number))
    for *_, trial in machine.open:
        machine.index.withdraw(trial)
    machine.index.expire(0.0)  # free what was purged
    uses, forks = state(machine.index), dict(machine.index._forks._counts)
    trials = [
        machine.index.propose(
            each[1], blocks, 100.0, each[3], machine.index.matched(blocks, each[1])
        )
        for each in flood
        if each[0] == "propose" and (blocks := chained(each[2]))
    ]
    for trial in trials:
        machine.index.withdraw(trial)
    assert state(machine.index) == uses
    assert machine.index._forks._counts == forks


REPORTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["propose", "insert", "store"]), PATHS),
        st.tuples(st.sampled_from(["confirm", "withdraw", "remove"]), st.integers(0, 9)),
        st.tuples(st.just("report"), st.sampled_from([True, False, None])),
        st.tuples(st.sampled_from(["clear", "purge"])),
    ),
    max_size=40,
)


def reported(
    index: ExactIndex, trials: list[Trial | RepeatedInsert], step: tuple[object, ...], now: float
) -> None:
    """Do one step of ``REPORTS``."""
    kind, value = step[0], step[-1]
    if kind in {"confirm", "withdraw"}:
        if trials:
            trial = trials.pop(value % len(trials))
            index.confirm(trial, now) if kind == "confirm" else index.withdraw(trial)
        return
    {
        "propose": lambda: trials.append(
            index.propose(A, chained(value), now, held=index.matched(chained(value), A))
        ),
        "insert": lambda: index.insert(A, chained(value), now),
        "store": lambda: index.store(A, 0, chained(value), chained(value)),
        "remove": lambda: index.remove(A, 0, (10 + value,)),
        "report": lambda: index.set_reporting(A, value),
        "clear": lambda: index.clear(A, 0),
        "purge": lambda: index.purge(A),
    }[kind]()


@settings(max_examples=200)
@given(REPORTS)
def test_reports_and_provisional_prompts_count_each_block_once(
    steps: list[tuple[object, ...]],
) -> None:
    """An endpoint that starts and stops reporting keeps its counts, and leaves no block behind."""
    index = ExactIndex(max_blocks=9)
    trials: list[Trial | RepeatedInsert] = []
    for number, step in enumerate(steps):
        reported(index, trials, step, float(number))
        for holder in index._holders.values():
            owners = [index._owner(block, holder.bit) for block in index._table]
            lanes = [each.lane for each in owners if each is not None and each.mask == holder.bit]
            assert lanes.count(holder.kept) == holder.kept.count
            assert lanes.count(holder.trials) == holder.trials.count
    for trial in trials:
        index.withdraw(trial)
    index.purge(A)
    for _ in range(3):
        index.expire(1_000.0)
    assert (index.blocks, len(index._forks), index._by_bit) == (0, 0, {})
