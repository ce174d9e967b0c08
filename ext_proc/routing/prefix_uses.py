"""What the prefix index is made of: uses (inserts) and the endpoints that they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from array import array

    from ext_proc.routing.types import EndpointKey


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


class Several:
    """The uses of one block that several endpoints hold, by the endpoint's bit."""

    __slots__ = ("mask", "uses")

    def __init__(self, first: Use, second: Use) -> None:
        self.mask = first.mask | second.mask
        self.uses = {first.mask: first, second.mask: second}


class Holder:
    """One endpoint's part of the index."""

    __slots__ = ("bit", "count", "key", "max_blocks", "newest", "oldest", "ttl_s")

    def __init__(self, key: EndpointKey, bit: int, max_blocks: int, ttl_s: float) -> None:
        self.key = key
        self.bit = bit
        self.count = 0
        self.max_blocks = max_blocks
        self.ttl_s = ttl_s
        self.oldest: Use | None = None
        self.newest: Use | None = None

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
