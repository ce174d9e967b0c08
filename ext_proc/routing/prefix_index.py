"""The prefix index: which replica probably holds which prompt blocks in its KV cache.

It is approximate: it knows what this picker sent, not what an engine evicted. What engines tell of
themselves comes in by ``exact_index``. A block's hash covers all blocks before it, so one flat
table of hashes stands for a radix tree.

Rules:

1. Matching is contiguous from the root: depth ``d`` means that the first ``d`` blocks are held.
2. Blocks leave an endpoint in the order of their last insert, least recent first, and within
   one insert from leaf to root: a parent is never older than its child.
3. An endpoint holds at most its ``max_blocks``; of a longer chain only the root's end is kept.
4. What no insert touched for the endpoint's ``ttl_s`` is forgotten, a bounded amount per
   ``expire`` call; an endpoint whose newest insert is that old is forgotten at once.
5. A purge takes effect at once and in constant time. Memory follows, as later inserts and
   ``expire`` calls give back more than they take.
6. Inserts and purges are events; whoever applies the same ones holds the same index.

Shape: the table maps a block to the *use* (one insert on one endpoint) that touched it last, or
to several uses where several endpoints hold it. The uses of an endpoint form a linked list by
age, so a touch is one dictionary write and no queue is ever searched. A use drops the hashes
that later uses took over once these are the majority.

Memory: 100 to 155 bytes per block held by one endpoint (dictionary slot, 64-bit key, eight bytes
in its use), less the longer the chains are, as a use itself takes about 250; below 200 by test.
A dictionary that has just grown may take 60 more per block. ``bench/decide.py`` measures it.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.forks import Forks
from ext_proc.routing.prefix_uses import Holder, Several, Use

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ext_proc.routing.roster import Seat
    from ext_proc.routing.types import EndpointKey

MAX_BLOCKS: Final = 100_000
TTL_S: Final = 600.0
EXPIRE_EVERY_S: Final = 1.0
"""Pause between two passes over the oldest uses."""
RECLAIM_BUDGET: Final = 256
"""Most blocks that one ``expire`` call forgets or gives back."""
LONG: Final = 32
"""Blocks from which on halving beats walking."""
_NOTHING: Final = range(0)


class Inserted(NamedTuple):
    """An endpoint was sent a prompt."""

    endpoint: EndpointKey
    blocks: tuple[int, ...]
    at: float


class Purged(NamedTuple):
    """An endpoint's cache is gone."""

    endpoint: EndpointKey


IndexEvent = Inserted | Purged


Steps = list[tuple[int, int]]
"""Where a walk from the root lost endpoints: the bits of those that hold so many blocks."""


class PrefixIndex:
    """Prompt blocks by endpoint.

    Args:
        max_blocks: Bound per endpoint where ``limit`` set no other.
        ttl_s: Age at which an untouched block is forgotten, likewise.
    """

    def __init__(self, max_blocks: int = MAX_BLOCKS, ttl_s: float = TTL_S) -> None:
        self._default = (max_blocks, ttl_s)
        self._limits: dict[EndpointKey, tuple[int, float]] = {}
        self._table: dict[int, Use | Several] = {}
        self._forks = Forks()
        self._holders: dict[EndpointKey, Holder] = {}
        self._by_bit: dict[int, Holder] = {}
        self._live = 0
        """The bits of all endpoints that are not purged."""
        self._dead: deque[Holder] = deque()
        self._free_bits: list[int] = []
        self._next_expiry = float("-inf")

    def __repr__(self) -> str:
        return f"<PrefixIndex blocks={len(self._table)} endpoints={len(self._holders)}>"

    @property
    def blocks(self) -> int:
        """Return how many distinct blocks are in memory."""
        return len(self._table)

    def held(self, endpoint: EndpointKey) -> int:
        """Return how many blocks an endpoint holds."""
        holder = self._holders.get(endpoint)
        return 0 if holder is None else holder.count

    # --- Asking ---------------------------------------------------------------------------------

    def matched(self, blocks: tuple[int, ...], endpoint: EndpointKey) -> int:
        """Return how many of the first blocks an endpoint holds without a gap."""
        return self.match_all(blocks).get(endpoint, 0)

    def match_all(self, blocks: tuple[int, ...]) -> dict[EndpointKey, int]:
        """Return the depth of the match of each endpoint that holds at least the first block."""
        return self.deepest(self.match(blocks), len(self._holders))

    def match(self, blocks: tuple[int, ...]) -> Steps:
        """Walk a prompt from its root; ``deepest`` and ``depth`` read what comes out.

        Its cost does not grow with the number of endpoints that hold the prompt.
        """
        if len(blocks) > LONG:
            return self._match_long(blocks)
        steps: Steps = []
        alive = self._live
        find = self._table.get
        depth = 0
        for block in blocks:
            entry = find(block)
            if entry is None:
                break
            mask = alive & entry.mask
            if mask != alive:
                if depth:
                    steps.append((alive, depth))
                if not mask:
                    return steps
                alive = mask
            depth += 1
        if depth and alive:
            steps.append((alive, depth))
        return steps

    def _match_long(self, blocks: tuple[int, ...]) -> Steps:
        """Walk a long prompt by halving: who holds a block holds all before it (rule 2)."""
        steps: Steps = []
        find = self._table.get
        depth, last = 0, len(blocks) - 1
        entry = find(blocks[0])
        alive = 0 if entry is None else self._live & entry.mask
        while alive:
            low, high = depth, last + 1  # `low` has the same holders, `high` has not
            probe = last  # a turn of a conversation is held nearly to its end
            while low < probe:
                entry = find(blocks[probe])
                if entry is not None and alive & entry.mask == alive:
                    low = probe
                else:
                    high = probe
                probe = (low + high) // 2
            steps.append((alive, low + 1))
            depth = low + 1
            entry = find(blocks[depth]) if depth <= last else None
            alive = 0 if entry is None else alive & entry.mask
        return steps

    def deepest(self, steps: Steps, most: int, chance: float = 0.0) -> dict[EndpointKey, int]:
        """Return the depth of the match of those who hold most of it, ``most`` of them.

        Args:
            steps: From ``match``, with no change of the index since.
            most: Bound of the answer; of those beyond it the shallowest are left out.
            chance: In [0, 1): where among equals to begin, so that not always the same are left
                out.
        """
        found: dict[EndpointKey, int] = {}
        by_bit = self._by_bit
        deeper = 0
        for alive, depth in reversed(steps):
            bits = alive & ~deeper
            first = int(chance * bits.bit_length())
            later = bits >> first << first
            for some in (later, bits ^ later):
                left = some
                while left:
                    if len(found) >= most:
                        return found
                    lowest = left & -left
                    found[by_bit[lowest].key] = depth
                    left ^= lowest
            deeper = alive
        return found

    def depths(self, steps: Steps, seats: Sequence[Seat]) -> list[int]:
        """Return how many of the first blocks of a matched prompt each seat's replica holds."""
        find = self._holders.get
        depths: list[int] = []
        rising = steps[::-1]
        for seat in seats:
            holder = find(seat.key)
            found = 0
            if holder is not None:
                for alive, depth in rising:
                    if alive & holder.bit:
                        found = depth
                        break
            depths.append(found)
        return depths

    def depth(self, steps: Steps, endpoint: EndpointKey) -> int:
        """Return how many of the first blocks of a matched prompt an endpoint holds."""
        holder = self._holders.get(endpoint)
        if holder is not None:
            for alive, depth in reversed(steps):
                if alive & holder.bit:
                    return depth
        return 0

    def shared_depth(self, blocks: tuple[int, ...], matched: int, endpoints: int) -> int:
        """Return how many of the first blocks are common property, worth a copy everywhere.

        Copying a prefix of ``d`` blocks to ``n`` replicas costs ``n * d`` blocks of prefill. Once
        it was continued in that many ways (a system prompt, not a conversation), this is at most
        one block for each of them: cheap against sending them all to one replica.

        Args:
            blocks: The prompt.
            matched: The deepest match of any endpoint; deeper blocks are not looked at.
            endpoints: How many replicas could hold a copy.
        """
        return self._forks.shared(blocks, matched, endpoints)

    def branched_depth(self, blocks: tuple[int, ...], matched: int) -> int:
        """Return how many of the first blocks were continued in two ways or more.

        They belong to several prompts, so whoever computes them again has made a copy that others
        will use. Below them lies what belongs to one conversation.

        Args:
            blocks: The prompt.
            matched: The deepest match of any endpoint; deeper blocks are not looked at.
        """
        return self._forks.branched(blocks, matched)

    # --- Changing -------------------------------------------------------------------------------

    def apply(self, event: IndexEvent) -> None:
        """Fold one event into the index."""
        if isinstance(event, Inserted):
            self.insert(event.endpoint, event.blocks, event.at)
        else:
            self.purge(event.endpoint)

    def limit(self, endpoint: EndpointKey, max_blocks: int, ttl_s: float) -> None:
        """Set an endpoint's bounds; what is above a lowered one is forgotten at once."""
        self._limits[endpoint] = (max_blocks, ttl_s)
        holder = self._holders.get(endpoint)
        if holder is not None:
            holder.max_blocks, holder.ttl_s = max_blocks, ttl_s
            if holder.told is not None:
                holder.told.usual_ttl_s = ttl_s
                holder.told.judge()
            while holder.count > max_blocks and holder.oldest is not None:
                self._evict(holder)

    def forget(self, endpoint: EndpointKey) -> None:
        """Purge an endpoint that will not come back, its bounds included."""
        self.purge(endpoint)
        self._limits.pop(endpoint, None)

    def insert(self, endpoint: EndpointKey, blocks: tuple[int, ...], now: float) -> None:
        """Note that an endpoint was sent a prompt.

        Args:
            endpoint: Who got it.
            blocks: The chained hashes of the prompt's blocks, root first, signed 64-bit.
            now: Monotonic seconds, never less than in an earlier call.
        """
        holder = self._holders.get(endpoint) or self._enrol(endpoint)
        whole = blocks = blocks[: holder.max_blocks]
        if holder.told is not None:
            blocks = holder.told.missing(blocks, self._table)
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
        """Forget all that an endpoint holds; it counts as empty from now on."""
        holder = self._holders.pop(endpoint, None)
        if holder is not None:
            self._live &= ~holder.bit
            self._dead.append(holder)

    def expire(self, now: float) -> None:
        """Forget what is too old, and give back the memory of purged endpoints.

        Cheap enough to be called with every request: it works once per ``EXPIRE_EVERY_S``, or
        in every call while more than ``RECLAIM_BUDGET`` blocks wait.
        """
        if now < self._next_expiry and not self._dead:
            return
        budget = self._reclaim(RECLAIM_BUDGET)
        if now < self._next_expiry:
            return
        for holder in list(self._holders.values()):
            too_old = now - holder.ttl_s
            newest = holder.newest
            if newest is not None and newest.at < too_old and holder.told is None:
                self.purge(holder.key)
                continue
            while budget > 0 and holder.oldest is not None and holder.oldest.at < too_old:
                self._evict(holder)
                budget -= 1
        if budget > 0:
            self._next_expiry = now + EXPIRE_EVERY_S

    def uses(self) -> Iterator[Inserted]:
        """Yield what stands for the index: inserted in this order, an empty one holds the same.

        The index may change between two steps; what is inserted meanwhile may be left out.
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
        self._live |= bit
        return holder

    def _continued(self, holder: Holder, chain: array[int]) -> tuple[range, Use | None]:
        """Find the use that a chain continues: all that is live of it is a run of the chain.

        Its blocks then need no touch, only the use does: a turn of a conversation costs what it
        adds, not what it repeats.
        """
        bit, find = holder.bit, self._table.get
        seen: Use | None = None
        for start, block in enumerate(chain):
            entry = find(block)
            owner = entry.uses.get(bit) if isinstance(entry, Several) else entry
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
        """Give blocks to a use; return how many it had already, as a hash came twice."""
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
        """Count it where a known prefix goes on in a way not seen before."""
        at = blocks.index(new)
        if at:
            self._forks.note(blocks[at - 1], at)

    def _share(self, block: int, entry: Use | Several, use: Use) -> Use | None:
        """Touch a block that others hold too; return the endpoint's own earlier use of it."""
        if isinstance(entry, Use):
            self._table[block] = Several(entry, use)
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
        if isinstance(entry, Several):
            return entry.uses.get(bit)
        return entry

    def _evict(self, holder: Holder) -> None:
        """Forget the leaf of an endpoint's oldest use."""
        use = holder.oldest
        if use is None:
            told = holder.told
            if told is not None and self._owner(block := told.pop() or 0, holder.bit) is told:
                self._drop(block, holder, told)
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
        """Give back the memory of purged endpoints; return what is left of the budget."""
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
