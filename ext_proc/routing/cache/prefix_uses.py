"""What the prefix index is made of: uses (inserts) and the endpoints that they belong to."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.routing.values.pool import EndpointKey

SPECULATIVE_S: Final = 2.0
"""What a telling endpoint was sent counts as held for so long, unless it confirms it."""
DOUBTS: Final = 64
"""After so many prompts in a row of which it never tells, its word and our hashes do not fit."""


class Use:
    """One insert: the blocks that it was the last to touch, root first."""

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
        """No hash occurs twice in it."""


class SharedUse:
    """The uses of one block that several endpoints hold, by the endpoint's bit."""

    __slots__ = ("mask", "uses")

    def __init__(self, first: Use, second: Use) -> None:
        self.mask = first.mask | second.mask
        self.uses = {first.mask: first, second.mask: second}


class Holder:
    """One endpoint's part of the index."""

    __slots__ = ("bit", "count", "key", "max_blocks", "newest", "oldest", "told", "ttl_s")

    def __init__(self, key: EndpointKey, bit: int, max_blocks: int, ttl_s: float) -> None:
        self.key = key
        self.bit = bit
        self.count = 0
        self.max_blocks = max_blocks
        self.ttl_s = ttl_s
        self.oldest: Use | None = None
        self.newest: Use | None = None
        self.told: ReportedUse | None = None
        """What it says of itself; ``None`` for an endpoint that does not tell."""

    def append(self, use: Use) -> None:
        """Make a use the newest one."""
        use.older, use.newer = self.newest, None
        if self.newest is None:
            self.oldest = use
        else:
            self.newest.newer = use
        self.newest = use

    def unlink(self, use: Use) -> None:
        """Take a use out."""
        if use.older is None:
            self.oldest = use.newer
        else:
            use.older.newer = use.newer
        if use.newer is None:
            self.newest = use.older
        else:
            use.newer.older = use.older


class ReportedUse(Use):
    """What an endpoint says that it holds, under the names that its engines gave the blocks.

    It is no part of the holder's list by age: only the endpoint ends it.
    """

    __slots__ = ("complete", "copies", "doubts", "names", "others", "usual_ttl_s")

    def __init__(self, holder: Holder, *, complete: bool) -> None:
        super().__init__(holder, array("q"), 0.0)
        self.plain = False
        self.names: dict[int, dict[int, int]] = {}
        """Block by name, by engine."""
        self.copies: dict[tuple[int, int], int] = {}
        """Further copies of a block in one engine, by engine and name; few have any."""
        self.others: dict[int, int] = {}
        """Further names of a block, mostly of other engines."""
        self.complete = complete
        self.doubts = 0
        self.usual_ttl_s = holder.ttl_s
        self.judge()

    @property
    def believed(self) -> bool:
        """Tell whether what it does not tell of is taken for not held."""
        return self.complete and self.doubts < DOUBTS

    def judge(self) -> None:
        """Set how long what it was sent counts without its word."""
        self.holder.ttl_s = SPECULATIVE_S if self.believed else self.usual_ttl_s

    def confirmed(self) -> None:
        """Note that it told of a block by a hash that we had sent or looked for."""
        if self.doubts:
            self.doubts = 0
            self.judge()

    def missing(
        self, blocks: tuple[int, ...], table: Mapping[int, Use | SharedUse]
    ) -> tuple[int, ...]:
        """Return those of the blocks that it was sent of which it has not told."""
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
        """Forget any name and return its block, ``None`` where nothing is left."""
        while self.names:
            engine, names = next(iter(self.names.items()))
            if names:
                return names.popitem()[1]
            del self.names[engine]
        return None
