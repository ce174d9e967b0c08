"""Parts of the prefix index: uses (inserts) and the endpoints that they belong to."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.routing.values.pool import EndpointKey

SPECULATIVE_S: Final = 2.0
"""Seconds for which prompts sent to a reporting endpoint count as held without confirmation."""
DOUBTS: Final = 64
"""Unconfirmed prompts in a row from which on reports and our hashes are taken not to match."""


class Use:
    """One insert: the blocks that no later insert has touched, root first."""

    __slots__ = ("at", "blocks", "holder", "live", "mask", "newer", "older", "plain")

    def __init__(self, holder: Holder, blocks: array[int], at: float) -> None:
        self.holder = holder
        self.mask = holder.bit
        self.blocks = blocks
        self.live = 0
        self.at = at
        self.older: Use | None = None
        self.newer: Use | None = None
        self.plain = True
        """Whether no hash occurs twice in it."""


class SharedUse:
    """The uses of one block that several endpoints hold, by the endpoint's bit."""

    __slots__ = ("mask", "uses")

    def __init__(self, first: Use, second: Use) -> None:
        self.mask = first.mask | second.mask
        self.uses = {first.mask: first, second.mask: second}


class Holder:
    """One endpoint's part of the index."""

    __slots__ = ("bit", "count", "key", "max_blocks", "newest", "oldest", "reported", "ttl_s")

    def __init__(self, key: EndpointKey, bit: int, max_blocks: int, ttl_s: float) -> None:
        self.key = key
        self.bit = bit
        self.count = 0
        self.max_blocks = max_blocks
        self.ttl_s = ttl_s
        self.oldest: Use | None = None
        self.newest: Use | None = None
        self.reported: ReportedUse | None = None
        """The blocks that it reports; ``None`` for an endpoint that does not report."""

    def append(self, use: Use) -> None:
        """Append a use as the newest one."""
        use.older, use.newer = self.newest, None
        if self.newest is None:
            self.oldest = use
        else:
            self.newest.newer = use
        self.newest = use

    def unlink(self, use: Use) -> None:
        """Remove a use from the list."""
        if use.older is None:
            self.oldest = use.newer
        else:
            use.older.newer = use.newer
        if use.newer is None:
            self.newest = use.older
        else:
            use.newer.older = use.older


class ReportedUse(Use):
    """The blocks that an endpoint reports as held, under its engines' own names (hashes).

    It is not in the holder's list by age: reported blocks do not expire.
    """

    __slots__ = ("complete", "copies", "doubts", "names", "others", "usual_ttl_s")

    def __init__(self, holder: Holder, *, complete: bool) -> None:
        super().__init__(holder, array("q"), 0.0)
        self.plain = False
        self.names: dict[int, dict[int, int]] = {}
        """By engine: block by name."""
        self.copies: dict[tuple[int, int], int] = {}
        """Additional copies of a block in one engine, by engine and name; few blocks have any."""
        self.others: dict[int, int] = {}
        """Number of additional names of a block, mostly from other engines."""
        self.complete = complete
        self.doubts = 0
        self.usual_ttl_s = holder.ttl_s
        self.judge()

    @property
    def believed(self) -> bool:
        """Whether blocks that the endpoint does not report are taken as not held."""
        return self.complete and self.doubts < DOUBTS

    def judge(self) -> None:
        """Set the time for which unconfirmed blocks count as held."""
        self.holder.ttl_s = SPECULATIVE_S if self.believed else self.usual_ttl_s

    def confirmed(self) -> None:
        """Note that it reported a block whose hash we sent or looked up, so the hashes match."""
        if self.doubts:
            self.doubts = 0
            self.judge()

    def missing(
        self, blocks: tuple[int, ...], table: Mapping[int, Use | SharedUse]
    ) -> tuple[int, ...]:
        """Return the blocks of a prompt sent to it that it has not reported."""
        missing = tuple([block for block in blocks if not self._has(table.get(block))])
        if len(missing) < len(blocks):
            self.confirmed()
        elif blocks:
            self.doubts += 1
            if self.doubts == DOUBTS:
                self.judge()
        return missing

    def _has(self, entry: Use | SharedUse | None) -> bool:
        if isinstance(entry, SharedUse):
            return entry.uses.get(self.mask) is self
        return entry is self

    def pop(self) -> int | None:
        """Remove any name and return its block, ``None`` if none is left."""
        while self.names:
            engine, names = next(iter(self.names.items()))
            if names:
                return names.popitem()[1]
            del self.names[engine]
        return None
