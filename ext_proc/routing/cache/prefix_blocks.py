"""Changes of single blocks in the prefix index: which use owns them, and which of them go.

Rules:

1. A block has at most one owner per endpoint: a confirmed use, the reported one, or a trial.
2. A confirmed use takes blocks from any other; a trial takes only what the endpoint does not hold.
3. A trial *leans on* the one that owns the block before its own. A provisional block goes with the
   last trial that needs it: its owner, or one that leans on it directly or through others.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING, Final

from ext_proc.routing.cache.prefix_table import PrefixTable
from ext_proc.routing.cache.prefix_uses import SHARES, RepeatedInsert, SharedUse, Trial, Use

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ext_proc.routing.cache.prefix_uses import Holder, Tenant, TrialLane

FREED: Final = 8
"""At its bound one part of so many of the provisional blocks is freed at once."""


class PrefixBlocks(PrefixTable):
    """Prompt blocks and their owners."""

    def __init__(self) -> None:
        super().__init__()
        self._dead: deque[Holder] = deque()
        """Purged endpoints whose memory is not freed yet."""
        self._free_bits: list[int] = []

    def _touch(
        self, holder: Holder, use: Use, touched: Iterable[int], blocks: Sequence[int]
    ) -> int:
        """Assign blocks to a use; return how many were repeated hashes."""
        table, bit, kept = self._table, holder.bit, holder.kept
        repeated, known = 0, True
        overtaken: dict[Use, int] = {}
        for block in touched:
            entry = table.get(block)
            if entry is None:
                if known:
                    known = False
                    self._note_fork(blocks, block)
                table[block] = use
                kept.count += 1
                continue
            earlier: Use | None
            if isinstance(entry, Use) and entry.mask == bit:
                earlier = entry
                table[block] = use
            else:
                earlier = self._share(block, entry, use)
            if earlier is None:
                kept.count += 1
            elif earlier is use:
                repeated += 1
            else:
                overtaken[earlier] = overtaken.get(earlier, 0) + 1
        for each, lost in overtaken.items():
            self._lost(holder, each, lost)
        return repeated

    def _lost(self, holder: Holder, use: Use, count: int) -> None:
        """Note that another use of the endpoint's confirmed blocks took some over."""
        use.live -= count
        use.tenant.live -= count
        if use.lane is not holder.kept:
            use.lane.count -= count
            holder.kept.count += count
        else:
            self._shrink(holder, use)

    def _note_fork(self, blocks: Sequence[int], new: int) -> None:
        """Count a new continuation if a known prefix is followed by the block ``new``."""
        at = blocks.index(new)
        if at:
            self._forks.note(blocks[at - 1], at)

    def _share(self, block: int, entry: Use | SharedUse, use: Use) -> Use | None:
        """Touch a block that other endpoints hold too; return this endpoint's earlier use of it."""
        if isinstance(entry, Use):
            self._table[block] = SharedUse(entry, use)
            return None
        earlier = entry.uses.get(use.mask)
        entry.uses[use.mask] = use
        entry.mask |= use.mask
        return earlier

    def _shrink(self, holder: Holder, use: Use) -> None:
        """Drop the hashes that later uses took over, once they are the majority."""
        if use.live == 0:
            holder.kept.unlink(use)
        elif 2 * use.live < len(use.blocks):
            kept = [block for block in use.blocks if self._owner(block, holder.bit) is use]
            use.blocks = array("q", kept)

    def _owner(self, block: int, bit: int) -> Use | None:
        entry = self._table.get(block)
        if isinstance(entry, SharedUse):
            return entry.uses.get(bit)
        return entry

    def _fit(self, holder: Holder, tenant: Tenant) -> None:
        """Evict until both lanes are within their bounds, for an insert of a tenant."""
        kept, trials = holder.kept, holder.trials
        while kept.count > kept.max_blocks and (use := kept.victim(tenant)) is not None:
            self._evict(holder, use)
        if trials.count > trials.max_blocks:
            self.displace(trials)

    def _evict(self, holder: Holder, use: Use) -> None:
        """Drop the leaf of one of an endpoint's confirmed uses."""
        while use.live and use.blocks:
            block = use.blocks.pop()
            if self._owner(block, holder.bit) is use:
                self._drop(block, holder, use)
                break
        if use.live == 0 or not use.blocks:
            holder.kept.unlink(use)

    def withdraw(self, trial: Trial | RepeatedInsert) -> None:
        """Drop a provisional insert: the blocks on which no other one leans.

        It has no effect on one that is confirmed or was dropped before.
        """
        if not trial.pending:
            return
        trial.pending = False
        if isinstance(trial, RepeatedInsert):
            trial.holder.trials.repeats -= 1
        else:
            del trial.holder.trials.trials[trial]
            self._recede(trial)

    def displace(self, lane: TrialLane) -> None:
        """Withdraw provisional inserts until an eighth of their bound is free."""
        goal = lane.max_blocks - lane.max_blocks // FREED
        listed = list(lane.trials)
        live: dict[int, int] = {}
        for trial in listed:
            live[trial.whose] = live.get(trial.whose, 0) + trial.live
        for trial in listed if len(live) > 1 else ():
            if lane.count <= goal:
                return
            if SHARES * live[trial.whose] > lane.max_blocks:
                live[trial.whose] -= trial.live
                self.withdraw(trial)
        for trial in listed:
            if lane.count <= goal:
                return
            self.withdraw(trial)

    def _recede(self, trial: Trial) -> None:
        """Drop what nothing needs of a trial that is not pending, and of those it leans on."""
        holder = trial.holder
        ended: Trial | None = trial
        while ended is not None:
            claims = ended.claims
            needed = max(ended.start, *claims) if claims else ended.start
            for block in reversed(ended.blocks[needed : ended.stop]):
                if self._owner(block, holder.bit) is ended:
                    self._drop(block, holder, ended)
            ended.stop = min(ended.stop, needed)
            ended = None if claims else released(ended)

    def _drop(self, block: int, holder: Holder, use: Use) -> None:
        entry = self._table[block]
        if isinstance(entry, Use):
            del self._table[block]
            self._forks.forget(block)
        else:
            del entry.uses[holder.bit]
            entry.mask ^= holder.bit
            if len(entry.uses) == 1:
                self._table[block] = next(iter(entry.uses.values()))
        use.live -= 1
        use.tenant.live -= 1
        use.lane.count -= 1

    def _reclaim(self, budget: int) -> int:
        """Free the memory of purged endpoints; return the rest of the budget."""
        while self._dead and budget > 0:
            holder = self._dead[0]
            kept, trials, reported = holder.kept, holder.trials, holder.reported
            while budget > 0:
                if trials.trials:
                    trial = next(iter(trials.trials))
                    budget -= len(trial.blocks)
                    self.withdraw(trial)
                elif kept.oldest is not None:
                    self._evict(holder, kept.oldest)
                    budget -= 1
                elif kept.count and reported is not None:
                    block = reported.pop() or 0
                    if self._owner(block, holder.bit) is reported:
                        self._drop(block, holder, reported)
                    budget -= 1
                else:
                    self._dead.popleft()
                    del self._by_bit[holder.bit]
                    self._free_bits.append(holder.bit)
                    break
        return budget


def released(trial: Trial) -> Trial | None:
    """End a trial's claim; return the trial that it leaned on if that one has ended, too."""
    before, trial.leans = trial.leans, None
    if before is None or before.claims is None:
        return None
    left = before.claims[trial.start] - 1
    if left:
        before.claims[trial.start] = left
    else:
        del before.claims[trial.start]
    return None if before.pending or before.confirmed else before
