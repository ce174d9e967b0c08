"""Provisional inserts: prompts whose answer has not begun.

Rules:

1. A provisional insert (a *trial*) counts for matching at once. It changes nothing that is
   confirmed: no age, no owner, no bound. Its blocks have a bound of their own (``Lane`` of
   ``prefix_uses``). At the bound trials are displaced until an eighth is free: the oldest of
   tenants above their share, then the oldest of all.
2. ``confirm`` makes it an insert at that time; also one that was displaced.
3. ``withdraw`` leaves no trace: blocks on which another trial leans stay, forks that it noted are
   forgotten. A confirmed block before them may be evicted meanwhile; they match nothing then.
   Trials on a reporting endpoint do not lean: its reports tell what it holds. What it reported of
   a trial and removed since is not inserted by a later ``confirm``.
4. A trial of blocks that are all confirmed there owns nothing and is only counted
   (``RepeatedInsert``).
5. A prompt that matches provisional blocks may find them, or may come before they are computed
   (``coming``): its answer's time does not tell how many it computed.
6. A purge of the endpoint ends its trials; a verdict on them has no effect any more.
"""

from __future__ import annotations

from array import array
from itertools import repeat
from typing import TYPE_CHECKING, Final

from ext_proc.routing.cache.prefix_uses import (
    SHARES,
    UNKNOWN_TENANT,
    RepeatedInsert,
    SharedUse,
    Trial,
)

if TYPE_CHECKING:
    from ext_proc.routing.cache.prefix_table import PrefixTable
    from ext_proc.routing.cache.prefix_uses import Holder, TrialLane
    from ext_proc.routing.cache.retention import Retention
    from ext_proc.routing.values.pool import EndpointKey

FREED: Final = 8
"""At its bound one part of so many of the provisional blocks is freed at once."""


class ProvisionalInserts:
    """Prompts by endpoint whose answer has not begun.

    Args:
        table: The blocks and their owners.
        retention: The confirmed inserts, which a trial joins with its verdict.
    """

    def __init__(self, table: PrefixTable, retention: Retention) -> None:
        self._table = table
        self._entries = table.entries
        self._holders = table.holders
        self._retention = retention

    def count(self, endpoint: EndpointKey) -> int:
        """Return the number of provisional blocks of an endpoint."""
        holder = self._holders.get(endpoint)
        return 0 if holder is None else holder.trials.count

    def coming(self, endpoint: EndpointKey, blocks: tuple[int, ...], held: int) -> int:
        """Return how many of the blocks that an endpoint holds it may still have to compute.

        These are the provisional ones. Of an endpoint that reports its cache there are none.

        Args:
            endpoint: The endpoint.
            blocks: The prompt.
            held: How many of its leading blocks the endpoint holds.
        """
        holder = self._holders.get(endpoint) if held else None
        if holder is None or not holder.trials.count or holder.reported is not None:
            return 0
        owner = self._table.owner(blocks[held - 1], holder.bit)
        if isinstance(owner, Trial) and owner.lane is holder.trials:
            return held - owner.computed
        return 0

    def propose(
        self,
        endpoint: EndpointKey,
        blocks: tuple[int, ...],
        now: float,
        tenant: int = UNKNOWN_TENANT,
        held: int = 0,
        *,
        recomputed: bool = False,
    ) -> Trial | RepeatedInsert:
        """Insert a prompt provisionally.

        Args:
            endpoint: The endpoint that was sent it.
            blocks: Chained hashes of the prompt's blocks, root first; at least one.
            now: Monotonic seconds.
            tenant: Who sent it.
            held: How many of them the endpoint probably holds; it saves a search.
            recomputed: The engine computes all of them, also those that it holds.
        """
        holder = self._holders.get(endpoint) or self._table.enrol(endpoint)
        lane, kept, bit = holder.trials, holder.kept, holder.bit
        end = len(blocks)
        if held == end <= kept.max_blocks and holder.reported is None:
            entry = self._entries.get(blocks[-1])
            owner = entry.uses.get(bit) if isinstance(entry, SharedUse) else entry
            if owner is not None and owner.lane is kept:
                lane.repeats += 1
                return RepeatedInsert(holder, array("q", blocks), now, tenant)
        if self._table.dead:
            self._table.reclaim(2 * end)
        if end > kept.max_blocks:
            end = kept.max_blocks
            blocks = blocks[:end]
        trial = Trial(holder, array("q", blocks), now, lane, tenant)
        if holder.reported is not None:
            start = 0
            trial.told = holder.reported.has(self._entries.get(blocks[0]))
            if recomputed:
                trial.recomputed = True
                holder.reported.expect(blocks)
        else:
            start = trial.start = self._start(bit, blocks, held)
            owner = self._table.owner(blocks[start - 1], bit) if start and lane.count else None
            if isinstance(owner, Trial) and owner.lane is lane:
                trial.lean(owner)
        if start < end:
            live = trial.live = self._add(trial, blocks, start)
            trial.plain = live == end - start
            lane.count += live
        lane.trials[trial] = None
        if lane.count > lane.max_blocks:
            self.fit(lane)
        return trial

    def failed(self, trial: Trial | RepeatedInsert) -> None:
        """Withdraw an insert whose request failed: its engine reports no blocks of it."""
        if isinstance(trial, Trial) and trial.recomputed and trial.holder.reported is not None:
            trial.holder.reported.forgo(tuple(trial.blocks))
        self._table.withdraw(trial)

    def confirm(self, trial: Trial | RepeatedInsert, now: float) -> None:
        """Confirm a provisional insert that was not withdrawn.

        Args:
            trial: The insert.
            now: Monotonic seconds, not less than in any earlier call.
        """
        holder = trial.holder
        if self._holders.get(holder.key) is not holder:
            return
        chain = trial.blocks
        if isinstance(trial, RepeatedInsert):
            if trial.pending:
                trial.pending = False
                holder.trials.repeats -= 1
                self._repeat(holder, chain, trial.whose, now)
            return
        if trial.fork is not None:
            self._table.forks.confirm(trial.fork)
        if not trial.pending or holder.reported is not None or len(chain) > holder.kept.max_blocks:
            if trial.told:
                chain = chain[: self._held_in_a_row(holder.bit, chain)]
            self._table.withdraw(trial)
            self._retention.insert(holder.key, tuple(chain), now, trial.whose)
            return
        trial.pending, trial.confirmed = False, True
        del holder.trials.trials[trial]
        self._retention.keep(holder, chain, chain, trial.whose, now, trial)
        self._table.release(trial)

    def fit(self, lane: TrialLane) -> None:
        """Above their bound withdraw provisional inserts until an eighth of it is free."""
        if lane.count <= lane.max_blocks:
            return
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
                self._table.withdraw(trial)
        for trial in listed:
            if lane.count <= goal:
                return
            self._table.withdraw(trial)

    # --- Inside ---------------------------------------------------------------------------------

    def _repeat(self, holder: Holder, chain: array[int], tenant: int, now: float) -> None:
        """Confirm a chain that was confirmed before, mostly as the same use."""
        kept, live = holder.kept, len(chain)
        entry = self._entries.get(chain[0])
        use = entry.uses.get(holder.bit) if isinstance(entry, SharedUse) else entry
        if (
            use is not None
            and use.lane is kept
            and use.live == live
            and use.tenant.key == tenant
            and use.plain
            and use.blocks[-live:] == chain
        ):
            use.blocks, use.at = chain, now
            kept.renew(use)
        elif live > kept.max_blocks:
            self._retention.insert(holder.key, tuple(chain), now, tenant)
        else:
            self._retention.keep(holder, chain, chain, tenant, now)

    def _start(self, bit: int, blocks: tuple[int, ...], held: int) -> int:
        """Return how many leading blocks an endpoint holds, probably ``held``."""
        find, end = self._entries.get, len(blocks)
        if not 0 < held <= end:
            entry = find(blocks[0])
            return 0 if entry is None or not entry.mask & bit else self._held(bit, blocks)
        if (
            (entry := find(blocks[held - 1])) is not None
            and entry.mask & bit
            and (held == end or (after := find(blocks[held])) is None or not after.mask & bit)
        ):
            return held
        return self._held(bit, blocks)

    def _held(self, bit: int, blocks: tuple[int, ...]) -> int:
        """Return how many leading blocks an endpoint holds (rule 2 of ``prefix_table``)."""
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high) // 2
            entry = self._entries.get(blocks[middle])
            if entry is not None and entry.mask & bit:
                low = middle + 1
            else:
                high = middle
        return low

    def _held_in_a_row(self, bit: int, chain: array[int]) -> int:
        """Return how many leading blocks an endpoint holds, whatever it holds after them."""
        find = self._entries.get
        for depth, block in enumerate(chain):
            entry = find(block)
            if entry is None or not entry.mask & bit:
                return depth
        return len(chain)

    def _add(self, trial: Trial, blocks: tuple[int, ...], start: int) -> int:
        """Own the blocks from ``start`` that are not held; return their number."""
        table, bit, find = self._entries, trial.mask, self._entries.get
        chain = blocks[start:] if start else blocks
        added, known = 0, True
        if find(chain[0]) is None:  # and most probably all after it
            self._fork(trial, blocks, start)
            before, known = len(table), False
            list(map(table.setdefault, chain, repeat(trial)))
            added = len(table) - before
            if added == len(chain):
                return added
        for block in chain:
            entry = find(block)
            if entry is None:
                if known:
                    known = False
                    self._fork(trial, blocks, blocks.index(block))
                table[block] = trial
            elif isinstance(entry, SharedUse):
                if entry.mask & bit:
                    continue
                entry.uses[bit] = trial
                entry.mask |= bit
            elif entry.mask == bit:
                continue
            else:
                table[block] = SharedUse(entry, trial)
            added += 1
        return added

    def _fork(self, trial: Trial, blocks: tuple[int, ...], at: int) -> None:
        """Count a new continuation of known blocks, if any come before the block at ``at``."""
        if at:
            self._table.forks.note(blocks[at - 1], at, blocks[at])
            trial.fork = blocks[at]
