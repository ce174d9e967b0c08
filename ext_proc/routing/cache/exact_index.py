"""The prefix index for endpoints that tell what they hold (KV events), beside those that do not.

Rules, beyond those of ``prefix_index``:

1. An endpoint that *tells* holds what its engines stored and have not removed; nothing of it grows
   old, and only its own word, a purge or its removal ends it. An engine may hold copies of a block,
   and several engines may hold it: it is held until the last of them is removed.
2. What it was sent counts as held for ``SPECULATIVE_S`` longer than it takes to be told, not for
   the usual time. Where its story has gaps (``complete`` is false), or where it never tells of what
   it is sent (``DOUBTS`` prompts in a row: other block size, hash or chat template), the usual time
   counts, so that it is never worse than an endpoint that does not tell.
3. Removals come in any order, so a block may be held without those before it. Matches stay
   contiguous from the root: prompts that such endpoints hold are walked, not halved.
4. An endpoint holds at most its ``max_blocks``; what it tells beyond them is passed over.
5. A purge forgets what was told, not that the endpoint tells.

Names are the engines' own hashes, cut to 60 bits: of a million blocks two are mixed up with a
probability of one in two million, and such a name takes 32 bytes instead of 40 or more.

Memory: 130 to 190 bytes per block that one endpoint told of (two dictionary slots, name and block),
below 200 by test but for dictionaries that have just grown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ext_proc.routing.cache import prefix_index
from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.cache.prefix_uses import ReportedUse, Use

if TYPE_CHECKING:
    from ext_proc.routing.cache.prefix_table import Steps
    from ext_proc.routing.cache.prefix_uses import Holder
    from ext_proc.routing.values.pool import EndpointKey

NAME_BITS: Final = 60


class Telling(NamedTuple):
    """An endpoint tells what it holds from now on; or does no more."""

    endpoint: EndpointKey
    complete: bool | None
    """Whether all that it holds is known from its word; ``None`` = it does not tell any more."""


class Stored(NamedTuple):
    """An engine of an endpoint holds these blocks, one behind the other."""

    endpoint: EndpointKey
    engine: int
    names: tuple[int, ...]
    """The engine's own, below ``2 ** NAME_BITS``."""
    blocks: tuple[int, ...]
    """Our hashes of the same blocks."""
    parent: int | None = None
    """Our hash of the block before them."""


class Removed(NamedTuple):
    """An engine of an endpoint gave up blocks."""

    endpoint: EndpointKey
    engine: int
    names: tuple[int, ...]


class Cleared(NamedTuple):
    """An engine of an endpoint holds nothing, or nothing is known of it any more."""

    endpoint: EndpointKey
    engine: int


CacheEvent = Telling | Stored | Removed | Cleared
IndexEvent = prefix_index.IndexEvent | CacheEvent


class ExactIndex(PrefixIndex):
    """Prompt blocks by endpoint, by our own dispatches and by the endpoints' word."""

    def __init__(
        self, max_blocks: int = prefix_index.MAX_BLOCKS, ttl_s: float = prefix_index.TTL_S
    ) -> None:
        super().__init__(max_blocks, ttl_s)
        self._telling: dict[EndpointKey, bool] = {}
        self._told_bits = 0
        self.overflowed = 0
        """Blocks that were told beyond an endpoint's bound."""

    # --- Asking ---------------------------------------------------------------------------------

    def telling(self) -> tuple[int, int, int]:
        """Return how many endpoints tell, how many of them all they hold, and how many in vain."""
        told = [each.told for each in self._holders.values() if each.told is not None]
        vain = sum(each.complete and not each.believed for each in told)
        return len(self._telling), sum(self._telling.values()), vain

    def is_exact(self, endpoint: EndpointKey) -> bool | None:
        """Tell whether an endpoint is known from its own word; ``None`` where it does not tell."""
        complete = self._telling.get(endpoint)
        holder = self._holders.get(endpoint)
        if not complete or holder is None or holder.told is None:
            return complete
        return holder.told.believed

    def block(self, endpoint: EndpointKey, engine: int, name: int) -> int | None:
        """Return our hash of a block that an engine named, ``None`` where it is unknown."""
        holder = self._holders.get(endpoint)
        if holder is None or holder.told is None:
            return None
        return holder.told.names.get(engine, {}).get(name)

    def _match_long(self, blocks: tuple[int, ...]) -> Steps:
        table = self._table
        entry = table.get(blocks[0])
        if entry is None or not entry.mask & self._told_bits:
            return super()._match_long(blocks)
        steps: Steps = []
        alive, depth = self._live & entry.mask, 0
        for block in blocks:
            entry = table.get(block)
            mask = 0 if entry is None else alive & entry.mask
            if mask != alive:
                if depth:
                    steps.append((alive, depth))
                alive = mask
                if not mask:
                    return steps
            depth += 1
        if alive:
            steps.append((alive, depth))
        return steps

    # --- Changing -------------------------------------------------------------------------------

    def apply(self, event: IndexEvent) -> None:
        """Fold one event into the index."""
        if isinstance(event, Stored):
            self.store(*event)
        elif isinstance(event, Removed):
            self.remove(*event)
        elif isinstance(event, Cleared):
            self.clear(*event)
        elif isinstance(event, Telling):
            self.tell(*event)
        else:
            super().apply(event)

    def forget(self, endpoint: EndpointKey) -> None:
        """Purge an endpoint that will not come back, its bounds and its word included."""
        super().forget(endpoint)
        self._telling.pop(endpoint, None)

    def tell(self, endpoint: EndpointKey, complete: bool | None) -> None:
        """Begin or end to believe an endpoint, or say whether its story has gaps."""
        if complete is None:
            if self._telling.pop(endpoint, None) is not None:
                self.purge(endpoint)
            return
        if endpoint not in self._telling:
            self.purge(endpoint)  # what was sent before would never be confirmed
        self._telling[endpoint] = complete
        holder = self._holders.get(endpoint)
        if holder is not None and holder.told is not None:
            holder.told.complete = complete
            holder.told.judge()

    def store(
        self,
        endpoint: EndpointKey,
        engine: int,
        names: tuple[int, ...],
        blocks: tuple[int, ...],
        parent: int | None = None,
    ) -> None:
        """Take it that an engine holds blocks; of an endpoint that does not tell, nothing."""
        if endpoint not in self._telling:
            return
        holder = self._holders.get(endpoint) or self._enrol(endpoint)
        told = holder.told
        if told is None:
            return
        if self._dead:
            self._reclaim(2 * len(blocks))
        named = told.names.setdefault(engine, {})
        known = True
        for name, block in zip(names, blocks, strict=True):
            if name in named:
                told.copies[engine, name] = told.copies.get((engine, name), 0) + 1
                continue
            entry = self._table.get(block)
            if self._owner(block, holder.bit) is told:
                told.others[block] = told.others.get(block, 0) + 1
            elif told.live >= holder.max_blocks:
                self.overflowed += 1
                continue
            else:
                if entry is None and known:
                    known = False
                    self._note_fork(blocks if parent is None else (parent, *blocks), block)
                self._take(block, holder, told)
            named[name] = block
        while holder.count > holder.max_blocks and holder.oldest is not None:
            self._evict(holder)

    def remove(self, endpoint: EndpointKey, engine: int, names: tuple[int, ...]) -> None:
        """Take it that an engine gave up blocks; names that are not known are passed over."""
        holder = self._holders.get(endpoint)
        if holder is None or holder.told is None:
            return
        told = holder.told
        named = told.names.get(engine, {})
        for name in names:
            if not _less(told.copies, (engine, name)):
                block = named.pop(name, None)
                if block is not None:
                    self._release(block, holder, told)

    def clear(self, endpoint: EndpointKey, engine: int) -> None:
        """Take it that an engine holds nothing.

        In constant time where the endpoint has one engine, which also ends what it was sent.
        """
        holder = self._holders.get(endpoint)
        if holder is None or holder.told is None:
            return
        told = holder.told
        if not any(names for other, names in told.names.items() if other != engine):
            self.purge(endpoint)
            return
        for copy in [each for each in told.copies if each[0] == engine]:
            del told.copies[copy]
        for block in told.names.pop(engine, {}).values():
            self._release(block, holder, told)

    # --- Inside ---------------------------------------------------------------------------------

    def _enrol(self, endpoint: EndpointKey) -> Holder:
        holder = super()._enrol(endpoint)
        complete = self._telling.get(endpoint)
        if complete is None:
            self._told_bits &= ~holder.bit
        else:
            self._told_bits |= holder.bit
            holder.told = ReportedUse(holder, complete=complete)
        return holder

    def _take(self, block: int, holder: Holder, told: ReportedUse) -> None:
        """Let a block be held by the endpoint's word, whether it was sent it or not."""
        entry = self._table.get(block)
        earlier: Use | None = None
        if entry is None:
            self._table[block] = told
        elif isinstance(entry, Use) and entry.mask == holder.bit:
            earlier = entry
            self._table[block] = told
        else:
            earlier = self._share(block, entry, told)
        told.live += 1
        if earlier is None:
            holder.count += 1
        else:
            earlier.live -= 1
            self._shrink(holder, earlier)
            told.confirmed()

    def _release(self, block: int, holder: Holder, told: ReportedUse) -> None:
        """Take one name from a block."""
        if not _less(told.others, block):
            self._drop(block, holder, told)


def _less(counts: dict[Any, int], key: object) -> bool:
    """Take one from a count that is kept only while it is above 0; tell whether it was."""
    count = counts.get(key, 0)
    if count > 1:
        counts[key] = count - 1
    elif count:
        del counts[key]
    return count > 0
