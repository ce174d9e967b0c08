"""Provisional inserts against reference models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.cache.prefix_uses import SharedUse
from ext_proc.routing.values.pool import EndpointKey
from support.prefix_caches import A, B
from support.tries import tries

if TYPE_CHECKING:
    from ext_proc.routing.cache.prefix_uses import RepeatedInsert, Trial


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
    for key, holder in index.table.holders.items():
        use = holder.kept.oldest
        while use is not None:
            owned = [block for block in use.blocks if index.table.owner(block, holder.bit) is use]
            found.setdefault(key, []).append((use.at, use.tenant.key, owned))
            use = use.newer
    return found


class Machine:
    """An index with trials, and an index that learns only what is confirmed."""

    def __init__(self, bound: int) -> None:
        self.index = PrefixIndex(max_blocks=bound)
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
            known = self.confirmed.table.matched(blocks, key)
            held = self.index.table.matched(blocks, key) if now % 3 else 0  # it may be said or not
            trial = self.index.provisional.propose(key, blocks, now, tenant, held)
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
                self.index.provisional.confirm(trial, now)
                self._confirm(key, blocks, tenant, now)
            else:
                self.index.table.withdraw(trial)

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
        index, table = self.index, self.index.table.entries
        for key, holder in index.table.holders.items():
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
                owned = [index.table.owner(block, holder.bit) for block in blocks]
                sure = [each is not None and each.lane is holder.kept for each in owned]
                assert sure == sorted(sure, reverse=True)
                assert sum(sure) == self.confirmed.table.matched(blocks, key)
        for blocks in self.seen:
            assert self.confirmed.table._match_long(blocks) == self.confirmed.table.match(blocks)

    def expected(self, blocks: tuple[int, ...], key: EndpointKey) -> int:
        """Return the match with the blocks of all open trials."""
        provisional: set[int] = set()
        for (whose, *_), claimed in zip(self.open, self.claimed, strict=True):
            if whose == key:
                provisional |= claimed
        depth = self.confirmed.table.matched(blocks, key)
        while depth < len(blocks) and blocks[depth] in provisional:
            depth += 1
        return depth

    def end(self) -> None:
        """Withdraw all: what is left is what was confirmed, and nothing after a purge."""
        for *_, trial in self.open:
            self.index.table.withdraw(trial)
        for blocks in self.seen:
            assert self.index.match_all(blocks) == self.confirmed.match_all(blocks)
        assert state(self.index) == state(self.confirmed)
        for key in (A, B):
            self.index.purge(key)
        self.index.expire(0.0)
        assert (self.index.blocks, len(self.index.table.forks), self.index.table._by_bit) == (
            0,
            0,
            {},
        )
        assert self.index.table.forks._unsure == {}


@settings(max_examples=tries(100))
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


@settings(max_examples=tries(100))
@given(STEPS)
def test_at_its_bounds_it_holds_what_is_confirmed(steps: list[tuple[object, ...]]) -> None:
    """With eviction, shares and displacement, the confirmed part is that of confirmed prompts."""
    machine = Machine(7)
    for number, step in enumerate(steps):
        machine.step(step, float(number))
        machine.check()
    machine.end()


@settings(max_examples=tries(70))
@given(STEPS, STEPS)
def test_refused_prompts_change_no_later_match(
    before: list[tuple[object, ...]], flood: list[tuple[object, ...]]
) -> None:
    """A flood that is refused leaves matches, ages and forks exactly as they were."""
    machine = Machine(7)
    for number, step in enumerate(before):
        machine.step(step, float(number))
    for *_, trial in machine.open:
        machine.index.table.withdraw(trial)
    machine.index.expire(0.0)  # free what was purged
    uses, forks = state(machine.index), dict(machine.index.table.forks._counts)
    trials = [
        machine.index.provisional.propose(
            each[1], blocks, 100.0, each[3], machine.index.table.matched(blocks, each[1])
        )
        for each in flood
        if each[0] == "propose" and (blocks := chained(each[2]))
    ]
    for trial in trials:
        machine.index.table.withdraw(trial)
    assert state(machine.index) == uses
    assert machine.index.table.forks._counts == forks


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
    index: PrefixIndex, trials: list[Trial | RepeatedInsert], step: tuple[object, ...], now: float
) -> None:
    """Do one step of ``REPORTS``."""
    kind, value = step[0], step[-1]
    if kind in {"confirm", "withdraw"}:
        if trials:
            trial = trials.pop(value % len(trials))
            index.provisional.confirm(trial, now) if kind == "confirm" else index.table.withdraw(
                trial
            )
        return
    {
        "propose": lambda: trials.append(
            index.provisional.propose(
                A, chained(value), now, held=index.table.matched(chained(value), A)
            )
        ),
        "insert": lambda: index.insert(A, chained(value), now),
        "store": lambda: index.reports.store(A, 0, chained(value), chained(value)),
        "remove": lambda: index.reports.remove(A, 0, (10 + value,)),
        "report": lambda: index.reports.set_reporting(A, value),
        "clear": lambda: index.reports.clear(A, 0),
        "purge": lambda: index.purge(A),
    }[kind]()


@settings(max_examples=tries(70))
@given(REPORTS)
def test_reports_and_provisional_prompts_count_each_block_once(
    steps: list[tuple[object, ...]],
) -> None:
    """An endpoint that starts and stops reporting keeps its counts, and leaves no block behind."""
    index = PrefixIndex(max_blocks=9)
    trials: list[Trial | RepeatedInsert] = []
    for number, step in enumerate(steps):
        reported(index, trials, step, float(number))
        for holder in index.table.holders.values():
            owners = [index.table.owner(block, holder.bit) for block in index.table.entries]
            lanes = [each.lane for each in owners if each is not None and each.mask == holder.bit]
            assert lanes.count(holder.kept) == holder.kept.count
            assert lanes.count(holder.trials) == holder.trials.count
    for trial in trials:
        index.table.withdraw(trial)
    index.purge(A)
    for _ in range(3):
        index.expire(1_000.0)
    assert (index.blocks, len(index.table.forks), index.table._by_bit) == (0, 0, {})
