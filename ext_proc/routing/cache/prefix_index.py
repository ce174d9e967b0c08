"""The prefix index: the prompt blocks that each replica probably holds in its KV cache.

It is approximate: it records what this picker sent, not what an engine evicted. ``exact_index``
adds the caches' contents as engines report them. Queries are in ``prefix_table``, changes here.

Rules:

1. An endpoint's blocks are evicted in the order of their last insert, least recent first, and
   within one insert from leaf to root: a parent is never older than its child.
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
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.cache.prefix_table import PrefixTable
from ext_proc.routing.cache.prefix_uses import Holder, SharedUse, Use

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ext_proc.routing.values.pool import EndpointKey

MAX_BLOCKS: Final = 100_000
TTL_S: Final = 600.0
EXPIRE_EVERY_S: Final = 1.0
"""Seconds between two passes over the oldest uses."""
RECLAIM_BUDGET: Final = 256
"""Maximum number of blocks that one ``expire`` call drops or frees."""
_NOTHING: Final = range(0)


class Inserted(NamedTuple):
    """An endpoint was sent a prompt."""

    endpoint: EndpointKey
    blocks: tuple[int, ...]
    at: float


class Purged(NamedTuple):
    """An endpoint's cache was lost."""

    endpoint: EndpointKey


IndexEvent = Inserted | Purged


class PrefixIndex(PrefixTable):
    """Prompt blocks by endpoint.

    Args:
        max_blocks: Default bound of blocks per endpoint, unless ``limit`` sets another.
        ttl_s: Default age in seconds at which an untouched block is dropped, likewise.
    """

    def __init__(self, max_blocks: int = MAX_BLOCKS, ttl_s: float = TTL_S) -> None:
        super().__init__()
        self._default = (max_blocks, ttl_s)
        self._limits: dict[EndpointKey, tuple[int, float]] = {}
        self._dead: deque[Holder] = deque()
        self._free_bits: list[int] = []
        self._next_expiry = float("-inf")

    def __repr__(self) -> str:
        return f"<PrefixIndex blocks={len(self._table)} endpoints={len(self._holders)}>"

    # --- Changing -------------------------------------------------------------------------------

    def apply(self, event: IndexEvent) -> None:
        """Apply one event."""
        if isinstance(event, Inserted):
            self.insert(event.endpoint, event.blocks, event.at)
        else:
            self.purge(event.endpoint)

    def limit(self, endpoint: EndpointKey, max_blocks: int, ttl_s: float) -> None:
        """Set an endpoint's bounds; blocks above a lowered bound are dropped at once."""
        self._limits[endpoint] = (max_blocks, ttl_s)
        holder = self._holders.get(endpoint)
        if holder is not None:
            holder.max_blocks, holder.ttl_s = max_blocks, ttl_s
            if holder.reported is not None:
                holder.reported.usual_ttl_s = ttl_s
                holder.reported.judge()
            while holder.count > max_blocks and holder.oldest is not None:
                self._evict(holder)

    def forget(self, endpoint: EndpointKey) -> None:
        """Purge an endpoint that was removed, including its bounds."""
        self.purge(endpoint)
        self._limits.pop(endpoint, None)

    def insert(self, endpoint: EndpointKey, blocks: tuple[int, ...], now: float) -> None:
        """Record that an endpoint was sent a prompt.

        Args:
            endpoint: The endpoint.
            blocks: Chained hashes of the prompt's blocks, root first, signed 64-bit.
            now: Monotonic seconds, not less than in any earlier call.
        """
        holder = self._holders.get(endpoint) or self._enrol(endpoint)
        whole = blocks = blocks[: holder.max_blocks]
        if holder.reported is not None:
            blocks = holder.reported.missing(blocks, self._table)
        if not blocks:
            return
        if self._dead:
            self._reclaim(2 * len(blocks))
        chain = array("q", blocks)
        kept, use = self._continued(holder, chain)
        if use is None:
            use = Use(holder, chain, now)
        else:
            holder.unlink(use)
            use.blocks, use.at = chain, now
        holder.append(use)
        touched = blocks if not kept else blocks[: kept.start] + blocks[kept.stop :]
        repeated = self._touch(holder, use, touched, whole)
        use.live = len(chain) - repeated
        use.plain = not repeated
        while holder.count > holder.max_blocks and holder.oldest is not None:
            self._evict(holder)

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
            too_old = now - holder.ttl_s
            newest = holder.newest
            if newest is not None and newest.at < too_old and holder.reported is None:
                self.purge(holder.key)
                continue
            while budget > 0 and holder.oldest is not None and holder.oldest.at < too_old:
                self._evict(holder)
                budget -= 1
        if budget > 0:
            self._next_expiry = now + EXPIRE_EVERY_S

    def uses(self) -> Iterator[Inserted]:
        """Yield inserts that reproduce the index when applied in this order to an empty one.

        The index may change between two steps; uses inserted meanwhile may be left out.
        """
        for holder in list(self._holders.values()):
            use = holder.oldest
            while use is not None:
                newer = use.newer
                if use.live:
                    yield Inserted(holder.key, tuple(use.blocks), use.at)
                use = newer

    # --- Inside ---------------------------------------------------------------------------------

    def _enrol(self, endpoint: EndpointKey) -> Holder:
        bit = self._free_bits.pop() if self._free_bits else 1 << len(self._by_bit)
        holder = Holder(endpoint, bit, *self._limits.get(endpoint, self._default))
        self._holders[endpoint] = self._by_bit[bit] = holder
        self._bits[endpoint] = bit
        self._live |= bit
        return holder

    def _continued(self, holder: Holder, chain: array[int]) -> tuple[range, Use | None]:
        """Find the use that a chain continues: all its live blocks are one run of the chain.

        Only the use is then touched, not its blocks, so that inserting a turn of a conversation
        costs as much as the blocks that it adds, not those that it repeats.
        """
        bit, find = holder.bit, self._table.get
        seen: Use | None = None
        for start, block in enumerate(chain):
            entry = find(block)
            owner = entry.uses.get(bit) if isinstance(entry, SharedUse) else entry
            if owner is None or owner.mask != bit:
                break
            if owner is seen:
                continue
            seen, live = owner, owner.live
            if (
                owner.plain
                and owner.blocks[len(owner.blocks) - live :] == chain[start : start + live]
            ):
                return range(start, start + live), owner
        return _NOTHING, None

    def _touch(
        self, holder: Holder, use: Use, touched: tuple[int, ...], blocks: tuple[int, ...]
    ) -> int:
        """Assign blocks to a use; return how many were repeated hashes."""
        table, bit = self._table, holder.bit
        repeated, known = 0, True
        overtaken: dict[Use, None] = {}
        for block in touched:
            entry = table.get(block)
            if entry is None:
                if known:
                    known = False
                    self._note_fork(blocks, block)
                table[block] = use
                holder.count += 1
                continue
            earlier: Use | None
            if isinstance(entry, Use) and entry.mask == bit:
                earlier = entry
                table[block] = use
            else:
                earlier = self._share(block, entry, use)
            if earlier is None:
                holder.count += 1
            elif earlier is use:
                repeated += 1
            else:
                earlier.live -= 1
                overtaken[earlier] = None
        for each in overtaken:
            self._shrink(holder, each)
        return repeated

    def _note_fork(self, blocks: tuple[int, ...], new: int) -> None:
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
            holder.unlink(use)
        elif 2 * use.live < len(use.blocks):
            kept = [block for block in use.blocks if self._owner(block, holder.bit) is use]
            use.blocks = array("q", kept)

    def _owner(self, block: int, bit: int) -> Use | None:
        entry = self._table.get(block)
        if isinstance(entry, SharedUse):
            return entry.uses.get(bit)
        return entry

    def _evict(self, holder: Holder) -> None:
        """Drop the leaf of an endpoint's oldest use."""
        use = holder.oldest
        if use is None:
            reported = holder.reported
            if (
                reported is not None
                and self._owner(block := reported.pop() or 0, holder.bit) is reported
            ):
                self._drop(block, holder, reported)
            return
        while use.live and use.blocks:
            block = use.blocks.pop()
            if self._owner(block, holder.bit) is use:
                self._drop(block, holder, use)
                break
        if use.live == 0 or not use.blocks:
            holder.unlink(use)

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
        holder.count -= 1

    def _reclaim(self, budget: int) -> int:
        """Free the memory of purged endpoints; return the rest of the budget."""
        while self._dead and budget > 0:
            holder = self._dead[0]
            while holder.count and budget > 0:
                self._evict(holder)
                budget -= 1
            if holder.count == 0:
                self._dead.popleft()
                del self._by_bit[holder.bit]
                self._free_bits.append(holder.bit)
        return budget
