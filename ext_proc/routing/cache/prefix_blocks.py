"""Changes of single blocks in the prefix index: which use owns them, and which of them go.

Rules:

1. A block has at most one owner per endpoint: a confirmed use, the reported one, or a trial.
2. A confirmed use takes blocks from any other; a trial takes only what the endpoint does not hold.
3. A provisional block goes with the last pending trial that claims it. A claim counts only if the
   trial is not older than the block's owner, and ends when the block is confirmed.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING

from ext_proc.routing.cache.prefix_table import PrefixTable
from ext_proc.routing.cache.prefix_uses import SharedUse, Trial, Use

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ext_proc.routing.cache.prefix_uses import Holder, Tenant


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
        while trials.count > trials.max_blocks and isinstance(trials.oldest, Trial):
            self.withdraw(trials.oldest)

    def _evict(self, holder: Holder, use: Use) -> None:
        """Drop the leaf of one of an endpoint's confirmed uses."""
        while use.live and use.blocks:
            block = use.blocks.pop()
            if self._owner(block, holder.bit) is use:
                self._drop(block, holder, use)
                break
        if use.live == 0 or not use.blocks:
            holder.kept.unlink(use)

    def withdraw(self, trial: Trial) -> None:
        """Drop a provisional insert: the blocks that no other one claims.

        It has no effect on one that is confirmed or was dropped before.
        """
        if not trial.pending:
            return
        trial.pending = False
        holder = trial.holder
        lane, extra, bit, serial = holder.trials, holder.extra, holder.bit, trial.serial
        lane.unlink(trial)
        for block in reversed(trial.blocks[trial.base :]):
            owner = self._owner(block, bit)
            # A block of a later trial was dropped and inserted again: the claim on it is gone.
            if not isinstance(owner, Trial) or owner.lane is not lane or owner.serial > serial:
                continue
            more = extra.get(block, 0)
            if more > 1:
                extra[block] = more - 1
            elif more:
                del extra[block]
            else:
                self._drop(block, holder, owner)

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
                if isinstance(trials.oldest, Trial):
                    budget -= len(trials.oldest.blocks)
                    self.withdraw(trials.oldest)
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
