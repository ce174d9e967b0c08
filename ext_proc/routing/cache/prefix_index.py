"""The prefix index: the prompt blocks that each replica probably holds in its KV cache.

It is approximate: it records what this picker sent, not what an engine evicted. ``exact_index``
adds the caches' contents as engines report them. Queries are in ``prefix_table``, changes of
single blocks in ``prefix_blocks``, inserts here and, before they are confirmed, in ``provisional``.

Rules:

1. An endpoint's blocks are evicted in the order of their last insert, least recent first, and
   within one insert from leaf to root: a parent is never older than its child. A tenant above its
   share gives way to itself first (``prefix_uses``).
2. An endpoint holds at most its ``max_blocks``; of a longer chain only the first blocks are kept.
3. Blocks that no insert touched for the endpoint's ``ttl_s`` are dropped, a bounded number per
   ``expire`` call; an endpoint whose newest insert is that old is purged at once.
4. A purge takes effect at once and in constant time. Its memory is freed later, because inserts
   and ``expire`` calls free more than they allocate.
5. Inserts and purges are events; applying the same events gives the same index.

Structure: the uses (inserts) of an endpoint form a linked list by age, so a touch is one
dictionary write and no queue is searched. A use drops the hashes that later uses took over once
these are the majority.

Memory: 100 to 155 bytes per block held by one endpoint (dictionary slot, 64-bit key, eight bytes
in its use), less with longer chains, because a use itself takes about 250; below 200 by test.
A dictionary that has just grown may take 60 more per block. ``bench/cost/decide.py`` measures it.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.cache.prefix_blocks import PrefixBlocks
from ext_proc.routing.cache.prefix_uses import (
    SHARED_TENANT,
    SPECULATIVE_S,
    UNKNOWN_TENANT,
    Holder,
    SharedUse,
    Use,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ext_proc.routing.cache.prefix_uses import ReportedUse, Trial

    _Run = tuple[int, int, Use]
    """A use whose live blocks are all one run of a chain: where it begins and ends, and the use."""
    from ext_proc.routing.values.pool import EndpointKey

MAX_BLOCKS: Final = 100_000
TTL_S: Final = 600.0
EXPIRE_EVERY_S: Final = 1.0
"""Seconds between two passes over the oldest uses."""
RECLAIM_BUDGET: Final = 256
"""Maximum number of blocks that one ``expire`` call drops or frees."""


class Inserted(NamedTuple):
    """An endpoint was sent a prompt."""

    endpoint: EndpointKey
    blocks: tuple[int, ...]
    at: float
    tenant: int = UNKNOWN_TENANT
    ticket: int = 0
    """The insert is provisional until this ticket's verdict; 0 = it is confirmed."""
    recomputed: bool = False
    """The engine computes all of it, also what it holds."""


class Purged(NamedTuple):
    """An endpoint's cache was lost."""

    endpoint: EndpointKey


IndexEvent = Inserted | Purged


class PrefixIndex(PrefixBlocks):
    """Prompt blocks by endpoint.

    Args:
        max_blocks: Default bound of blocks per endpoint, unless ``limit`` sets another.
        ttl_s: Default age in seconds at which an untouched block is dropped, likewise.
    """

    def __init__(self, max_blocks: int = MAX_BLOCKS, ttl_s: float = TTL_S) -> None:
        super().__init__()
        self._default = (max_blocks, ttl_s)
        self._limits: dict[EndpointKey, tuple[int, float]] = {}
        self._next_expiry = float("-inf")

    def __repr__(self) -> str:
        return f"<PrefixIndex blocks={len(self._table)} endpoints={len(self._holders)}>"

    # --- Changing -------------------------------------------------------------------------------

    def apply(self, event: IndexEvent) -> None:
        """Apply one event."""
        if isinstance(event, Inserted):
            self.insert(event.endpoint, event.blocks, event.at, event.tenant)
        else:
            self.purge(event.endpoint)

    def limit(self, endpoint: EndpointKey, max_blocks: int, ttl_s: float) -> None:
        """Set an endpoint's bounds; blocks above a lowered bound are dropped at once."""
        self._limits[endpoint] = (max_blocks, ttl_s)
        holder = self._holders.get(endpoint)
        if holder is not None:
            holder.bound(max_blocks)
            holder.ttl_s = ttl_s
            self._fit(holder, holder.kept.tenant(SHARED_TENANT))

    def bound(self, endpoint: EndpointKey) -> int:
        """Return the maximum number of confirmed blocks of an endpoint."""
        return self._limits.get(endpoint, self._default)[0]

    def forget(self, endpoint: EndpointKey) -> None:
        """Purge an endpoint that was removed, including its bounds."""
        self.purge(endpoint)
        self._limits.pop(endpoint, None)

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
        holder = self._holders.get(endpoint) or self._enrol(endpoint)
        whole = blocks = blocks[: holder.kept.max_blocks]
        reported = holder.reported
        if reported is not None:
            blocks = reported.missing(blocks, self._table)
        if not blocks:
            return
        if self._dead:
            self._reclaim(2 * len(blocks))
        self._keep(holder, array("q", blocks), whole, tenant, now)
        if reported is not None:
            told = len(blocks) < len(whole)
            for use in {self._owner(block, holder.bit) for block in blocks}:
                if use is not None and told:
                    reported.waiting[use] = None
                elif use is not None:
                    reported.waiting.pop(use, None)

    def purge(self, endpoint: EndpointKey) -> None:
        """Drop all blocks of an endpoint; it counts as empty from now on."""
        holder = self._holders.pop(endpoint, None)
        if holder is not None:
            del self._bits[endpoint]
            self._live &= ~holder.bit
            self._dead.append(holder)

    def expire(self, now: float) -> None:
        """Drop blocks that are too old, and free the memory of purged endpoints.

        Cheap enough to be called with every request: it works once per ``EXPIRE_EVERY_S``, or
        in every call while more than ``RECLAIM_BUDGET`` blocks are due.
        """
        if now < self._next_expiry and not self._dead:
            return
        budget = self._reclaim(RECLAIM_BUDGET)
        if now < self._next_expiry:
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
                    self.purge(holder.key)
                    continue
            while budget > 0 and oldest is not None and oldest.at < too_old:
                self._evict(holder, oldest)
                oldest = kept.oldest
                budget -= 1
        if budget > 0:
            self._next_expiry = now + EXPIRE_EVERY_S

    def _end_waiting(
        self, holder: Holder, reported: ReportedUse, too_old: float, budget: int
    ) -> int:
        """Drop what reports should have named by now; return the number of dropped blocks."""
        spent = 0
        for use in list(reported.waiting):
            while reported.complete and use.at < too_old and use.live and spent < budget:
                self._evict(holder, use)
                spent += 1
            if not use.live:
                del reported.waiting[use]
        return spent

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

    def _enrol(self, endpoint: EndpointKey) -> Holder:
        bit = self._free_bits.pop() if self._free_bits else 1 << len(self._by_bit)
        holder = Holder(endpoint, bit, *self._limits.get(endpoint, self._default))
        self._holders[endpoint] = self._by_bit[bit] = holder
        self._bits[endpoint] = bit
        self._live |= bit
        return holder

    def _keep(
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
            self._fit(holder, kept.tenants.get(tenant) or use.tenant)

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
        bit, find, kept, end = holder.bit, self._table.get, holder.kept, len(chain)
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
