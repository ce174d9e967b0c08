"""Provisional inserts: prompts whose answer has not begun.

Rules:

1. A provisional insert (a *trial*) counts for matching at once. It changes nothing that is
   confirmed: no age, no owner, no bound. Its blocks have a bound of their own (``Lane`` of
   ``prefix_uses``); at the bound the oldest trials are displaced, a tenant's own first.
2. ``confirm`` makes it an insert at that time; also one that was displaced.
3. ``withdraw`` leaves no trace: blocks that another trial claims stay, forks that it noted are
   forgotten. A confirmed block before them may be evicted meanwhile; they match nothing then.
4. A purge of the endpoint ends its trials; a verdict on them has no effect any more.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from ext_proc.routing.cache.prefix_index import MAX_BLOCKS, TTL_S, PrefixIndex
from ext_proc.routing.cache.prefix_uses import NOBODY, SharedUse, Trial

if TYPE_CHECKING:
    from ext_proc.routing.cache.prefix_uses import Holder
    from ext_proc.routing.values.pool import EndpointKey


class ProvisionalIndex(PrefixIndex):
    """Prompt blocks by endpoint, confirmed and provisional."""

    def __init__(self, max_blocks: int = MAX_BLOCKS, ttl_s: float = TTL_S) -> None:
        super().__init__(max_blocks, ttl_s)
        self._serial = 0

    def provisional(self, endpoint: EndpointKey) -> int:
        """Return the number of provisional blocks of an endpoint."""
        holder = self._holders.get(endpoint)
        return 0 if holder is None else holder.trials.count

    def propose(
        self,
        endpoint: EndpointKey,
        blocks: tuple[int, ...],
        now: float,
        tenant: int = NOBODY,
        held: int = 0,
    ) -> Trial:
        """Insert a prompt provisionally.

        Args:
            endpoint: The endpoint that was sent it.
            blocks: Chained hashes of the prompt's blocks, root first; at least one.
            now: Monotonic seconds.
            tenant: Who sent it.
            held: How many of them the endpoint probably holds; it saves a search.
        """
        holder = self._holders.get(endpoint) or self._enrol(endpoint)
        lane = holder.trials
        if self._dead:
            self._reclaim(2 * len(blocks))
        self._serial += 1
        chain = array("q", blocks[: holder.kept.max_blocks])
        trial = Trial(holder, chain, now, lane, lane.tenant(tenant), self._serial)
        if holder.reported is None:
            new = self._held(holder, chain, held)
            trial.base = self._claimed(holder, chain, new)
        else:
            new = 0
        if new < len(chain):
            live = self._add(holder, trial, new)
            trial.live = live
            trial.plain = live == len(chain) - new
            trial.tenant.live += live
            lane.count += live
        lane.append(trial)
        while lane.count > lane.max_blocks:
            oldest = lane.victim(trial.tenant)
            if not isinstance(oldest, Trial):
                break
            self.withdraw(oldest)
        return trial

    def confirm(self, trial: Trial, now: float) -> None:
        """Confirm a provisional insert that was not withdrawn.

        Args:
            trial: The insert.
            now: Monotonic seconds, not less than in any earlier call.
        """
        holder = trial.holder
        if self._holders.get(holder.key) is not holder:
            return
        chain = trial.blocks
        if not trial.pending or holder.reported is not None or len(chain) > holder.kept.max_blocks:
            self.withdraw(trial)
            self.insert(holder.key, tuple(chain), now, trial.tenant.key)
            return
        trial.pending = False
        holder.trials.unlink(trial)
        if holder.extra:
            for block in chain[trial.base :]:
                holder.extra.pop(block, None)
        if trial.fork is not None:
            self._forks.confirm(trial.fork)
        self._keep(holder, chain, chain, trial.tenant.key, now, trial)

    # --- Inside ---------------------------------------------------------------------------------

    def _held(self, holder: Holder, chain: array[int], hint: int) -> int:
        """Return how many leading blocks an endpoint holds (rule 2 of ``prefix_table``)."""
        end = len(chain)
        low, high = 0, end
        if hint:
            hint = min(hint, end)
            if not self._holds(holder, chain[hint - 1]):
                high = hint - 1
            elif hint == end or not self._holds(holder, chain[hint]):
                return hint
            else:
                low = hint + 1
        elif not end or not self._holds(holder, chain[0]):
            return 0
        while low < high:
            middle = (low + high) // 2
            if self._holds(holder, chain[middle]):
                low = middle + 1
            else:
                high = middle
        return low

    def _holds(self, holder: Holder, block: int) -> bool:
        entry = self._table.get(block)
        return entry is not None and entry.mask & holder.bit != 0

    def _claimed(self, holder: Holder, chain: array[int], held: int) -> int:
        """Claim the provisional blocks before ``held``; return where they begin."""
        lane, extra, bit = holder.trials, holder.extra, holder.bit
        if not lane.count:
            return held
        while held:
            block = chain[held - 1]
            owner = self._owner(block, bit)
            if owner is None or owner.lane is not lane:
                break
            extra[block] = extra.get(block, 0) + 1
            held -= 1
        return held

    def _add(self, holder: Holder, trial: Trial, start: int) -> int:
        """Own the blocks from ``start`` that are not held; return their number."""
        table, bit, lane, extra = self._table, holder.bit, holder.trials, holder.extra
        chain, added, known = trial.blocks, 0, True
        for block in chain[start:] if start else chain:
            entry = table.get(block)
            if entry is None:
                if known:
                    known = False
                    at = chain.index(block)
                    if at:
                        self._forks.note(chain[at - 1], at, block)
                        trial.fork = block
                table[block] = trial
                added += 1
                continue
            if isinstance(entry, SharedUse):
                owner = entry.uses.get(bit)
                if owner is None:
                    entry.uses[bit] = trial
                    entry.mask |= bit
                    added += 1
                    continue
            elif entry.mask != bit:
                table[block] = SharedUse(entry, trial)
                added += 1
                continue
            else:
                owner = entry
            if owner.lane is lane and owner is not trial:
                extra[block] = extra.get(block, 0) + 1
        return added
