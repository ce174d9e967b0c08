"""Inserts of the prefix index: provisional until their answer has begun, then confirmed.

Rules of confirmed inserts (``Retention``):

1. An endpoint's blocks are evicted in the order of their last insert, least recent first, and
   within one insert from leaf to root: a parent is never older than its child. A tenant above its
   share gives way to itself first (``prefix_uses``).
2. An endpoint holds at most its ``max_blocks``; of a longer chain only the first blocks are kept.
3. Blocks that no insert touched for the endpoint's ``ttl_s`` are dropped, a bounded number per
   ``expire`` call; an endpoint whose newest insert is that old is purged at once.
4. A confirmed use takes blocks from any other owner.

Structure: the uses (inserts) of an endpoint form a linked list by age, so a touch is one
dictionary write and no queue is searched. A use drops the hashes that later uses took over once
these are the majority.

Rules of provisional inserts:

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

from ext_proc.routing.cache.index_events import Inserted
from ext_proc.routing.cache.prefix_uses import (
    SHARED_TENANT,
    SHARES,
    SPECULATIVE_S,
    UNKNOWN_TENANT,
    RepeatedInsert,
    SharedUse,
    Trial,
    Use,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ext_proc.routing.cache.prefix_table import PrefixTable
    from ext_proc.routing.cache.prefix_uses import Holder, ReportedUse, Tenant, TrialLane
    from ext_proc.routing.values.pool import EndpointKey

    _Run = tuple[int, int, Use]
    """A use whose live blocks are all one run of a chain: where it begins and ends, and the use."""


EXPIRE_EVERY_S: Final = 1.0
"""Seconds between two passes over the oldest uses."""
RECLAIM_BUDGET: Final = 256
"""Maximum number of blocks that one ``expire`` call drops or frees."""


class Retention:
    """Confirmed prompts by endpoint.

    Args:
        table: The blocks and their owners.
    """

    def __init__(self, table: PrefixTable) -> None:
        self._table = table
        self._entries = table.entries
        self._holders = table.holders
        self._dead = table.dead
        self.next_expiry = float("-inf")
        """When blocks may be due, monotonic seconds."""

    def insert(
        self,
        endpoint: EndpointKey,
        blocks: tuple[int, ...],
        now: float,
        tenant: int = UNKNOWN_TENANT,
    ) -> None:
        """Record that an endpoint holds a prompt.

        Args:
            endpoint: The endpoint.
            blocks: Chained hashes of the prompt's blocks, root first, signed 64-bit.
            now: Monotonic seconds, not less than in any earlier call.
            tenant: Who sent it, a number of 63 bits; ``UNKNOWN_TENANT`` = unknown.
        """
        holder = self._holders.get(endpoint) or self._table.enrol(endpoint)
        whole = blocks = blocks[: holder.kept.max_blocks]
        reported = holder.reported
        if reported is not None:
            blocks = reported.missing(blocks, self._entries)
        if not blocks:
            return
        if self._dead:
            self._table.reclaim(2 * len(blocks))
        self.keep(holder, array("q", blocks), whole, tenant, now)
        if reported is not None:
            told = len(blocks) < len(whole)
            for use in {self._table.owner(block, holder.bit) for block in blocks}:
                if use is not None and told:
                    reported.waiting[use] = None
                elif use is not None:
                    reported.waiting.pop(use, None)

    def keep(
        self,
        holder: Holder,
        chain: array[int],
        whole: Sequence[int],
        tenant: int,
        now: float,
        adopted: Trial | None = None,
    ) -> None:
        """Confirm a chain; ``whole`` is it with the blocks between that the endpoint reports.

        The leading blocks that others sent too become those of ``SHARED_TENANT``, and newer than
        the rest, as parents are.
        """
        common, shared, own = self._runs(holder, chain, tenant, adopted)
        if not common:
            use = self._renew(holder, chain, whole, own, tenant, now)
        else:
            if common < len(chain):
                self._renew(holder, chain[common:], whole, own, tenant, now)
            use = self._renew(holder, chain[:common], whole, shared, SHARED_TENANT, now)
        kept = holder.kept
        if kept.count > kept.max_blocks:
            self.fit(holder, kept.tenants.get(tenant) or use.tenant)

    def fit(self, holder: Holder, tenant: Tenant) -> None:
        """Evict until an endpoint is within its bound, for an insert of a tenant."""
        kept = holder.kept
        while kept.count > kept.max_blocks and (use := kept.victim(tenant)) is not None:
            self._table.evict(holder, use)

    def lost(self, holder: Holder, use: Use, count: int) -> None:
        """Note that another use of the endpoint's confirmed blocks took some over."""
        use.live -= count
        use.tenant.live -= count
        if use.lane is not holder.kept:
            use.lane.count -= count
            holder.kept.count += count
        else:
            self._shrink(holder, use)

    def expire(self, now: float) -> None:
        """Drop blocks that are too old, and free the memory of purged endpoints.

        It works once per ``EXPIRE_EVERY_S``, or in every call while more than ``RECLAIM_BUDGET``
        blocks are due. Requests call it only from ``next_expiry`` on, or with dead endpoints.
        """
        budget = self._table.reclaim(RECLAIM_BUDGET)
        if now < self.next_expiry:
            return
        for holder in list(self._holders.values()):
            kept, too_old = holder.kept, now - holder.ttl_s
            if holder.reported is not None and holder.reported.waiting:
                budget -= self._end_waiting(holder, holder.reported, now - SPECULATIVE_S, budget)
            oldest, newest = kept.oldest, kept.newest
            if oldest is None or newest is None or oldest.at >= too_old:
                continue
            if newest.at < too_old and holder.reported is None:
                trials = holder.trials
                if not trials.trials and not trials.repeats:
                    self._table.purge(holder.key)
                    continue
            while budget > 0 and oldest is not None and oldest.at < too_old:
                self._table.evict(holder, oldest)
                oldest = kept.oldest
                budget -= 1
        if budget > 0:
            self.next_expiry = now + EXPIRE_EVERY_S

    def uses(self) -> Iterator[Inserted]:
        """Yield inserts that reproduce the index when applied in this order to an empty one.

        The index may change between two steps; uses inserted meanwhile may be left out.
        """
        for holder in list(self._holders.values()):
            use = holder.kept.oldest
            while use is not None:
                newer = use.newer
                if use.live:
                    yield Inserted(holder.key, tuple(use.blocks), use.at, use.tenant.key)
                use = newer

    # --- Inside ---------------------------------------------------------------------------------

    def _runs(
        self, holder: Holder, chain: array[int], tenant: int, adopted: Trial | None
    ) -> tuple[int, _Run | None, _Run | None]:
        """Find what a chain continues: uses all of whose live blocks are one run of the chain.

        Only such a use is then touched, not its blocks, so that inserting a turn of a conversation
        costs as much as the blocks that it adds, not those that it repeats.

        Returns:
            The number of leading blocks that other tenants hold; the largest run in them of the
            shared tenant; the largest run of the tenant itself after them, counted from there.
        """
        bit, find, kept, end = holder.bit, self._entries.get, holder.kept, len(chain)
        common = at = shared_live = own_live = 0
        shared: _Run | None = None
        own: _Run | None = None
        seen: Use | None = None
        while at < end:
            entry = find(chain[at])
            owner = entry.uses.get(bit) if isinstance(entry, SharedUse) else entry
            if owner is None or owner.mask != bit:
                break
            whole, stop = False, at + 1
            if owner is not seen:
                seen, live, blocks = owner, owner.live, owner.blocks
                if owner.plain and blocks[len(blocks) - live :] == chain[at : at + live]:
                    whole, stop = True, at + live
            if owner.lane is kept and owner.tenant.key != tenant:
                common = stop
                if whole and live > shared_live and owner.tenant.key == SHARED_TENANT:
                    shared, shared_live = (at, stop, owner), live
            elif whole and live > own_live and (owner.lane is kept or owner is adopted):
                own, own_live = (at, stop, owner), live
                if live >= end - stop:
                    break
            at = stop
        if common and own is not None:
            start, stop, use = own
            own = None if start < common else (start - common, stop - common, use)
        return common, shared, own

    def _renew(
        self,
        holder: Holder,
        chain: array[int],
        whole: Sequence[int],
        run: _Run | None,
        tenant: int,
        now: float,
    ) -> Use:
        """Make a chain the newest use of a tenant, from a use that it continues if there is one."""
        kept = holder.kept
        touched = chain
        if run is None:
            use = Use(holder, chain, now, kept, kept.tenant(tenant))
            kept.append(use)
        else:
            start, stop, use = run
            if use.lane is kept:
                kept.renew(use)
            else:  # a trial; it is in no list any more
                live = use.live
                use.lane.count -= live
                use.tenant.live -= live
                use.lane, use.tenant = kept, kept.tenant(tenant)
                kept.count += live
                use.tenant.live += live
                kept.append(use)
            use.blocks, use.at = chain, now
            touched = chain[:start] + chain[stop:]
        repeated = self._touch(holder, use, touched, whole) if touched else 0
        live = len(chain) - repeated
        use.tenant.live += live - use.live
        use.live = live
        use.plain = not repeated
        return use

    def _end_waiting(
        self, holder: Holder, reported: ReportedUse, too_old: float, budget: int
    ) -> int:
        """Drop what reports should have named by now; return the number of dropped blocks."""
        spent = 0
        for use in list(reported.waiting):
            while reported.complete and use.at < too_old and use.live and spent < budget:
                self._table.evict(holder, use)
                spent += 1
            if not use.live:
                del reported.waiting[use]
        return spent

    def _touch(
        self, holder: Holder, use: Use, touched: Iterable[int], blocks: Sequence[int]
    ) -> int:
        """Assign blocks to a use; return how many were repeated hashes."""
        table, bit, kept = self._entries, holder.bit, holder.kept
        repeated, known = 0, True
        overtaken: dict[Use, int] = {}
        for block in touched:
            entry = table.get(block)
            if entry is None:
                if known:
                    known = False
                    self._table.note_fork(blocks, block)
                table[block] = use
                kept.count += 1
                continue
            earlier: Use | None
            if isinstance(entry, Use) and entry.mask == bit:
                earlier = entry
                table[block] = use
            else:
                earlier = self._table.share(block, entry, use)
            if earlier is None:
                kept.count += 1
            elif earlier is use:
                repeated += 1
            else:
                overtaken[earlier] = overtaken.get(earlier, 0) + 1
        for each, lost in overtaken.items():
            self.lost(holder, each, lost)
        return repeated

    def _shrink(self, holder: Holder, use: Use) -> None:
        """Drop the hashes that later uses took over, once they are the majority."""
        if use.live == 0:
            holder.kept.unlink(use)
        elif 2 * use.live < len(use.blocks):
            kept = [block for block in use.blocks if self._table.owner(block, holder.bit) is use]
            use.blocks = array("q", kept)


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
            held: How many of them the endpoint probably holds, which saves a search; 0 = unknown.
            recomputed: The engine computes all of them, also those that it holds.
        """
        holder = self._holders.get(endpoint) or self._table.enrol(endpoint)
        lane, kept, bit = holder.trials, holder.kept, holder.bit
        end = len(blocks)
        if held in (0, end) and end <= kept.max_blocks and holder.reported is None:
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
