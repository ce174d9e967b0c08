"""Counts what peers make a server hold, over all its connections and streams. Pure.

Rules:

1. Counted are received bytes that were not read, the beginnings of messages, unsent bytes, and
   ``STREAM_BYTES`` for each open stream.
2. From ``REFUSE`` of the limit on new streams are refused. Where one was, and above the limit, the
   largest holders are reset until ``RELIEVED`` of it is left. So the search for them is rare
   however little each holds, and a peer cannot keep others out by holding a little less than all.
"""

from __future__ import annotations

from typing import Final

STREAM_BYTES: Final = 2048
"""Memory of an open stream without messages, about; measured 1.8 KiB."""
MIN_LIMIT: Final = 256 * 2**20
MESSAGES: Final = 2
"""Messages of the maximum size for which there must be room."""
REFUSE: Final = 0.875
RELIEVED: Final = 0.75


class Held:
    """The count; its users add and subtract.

    Args:
        message: Maximum bytes of a message.
    """

    __slots__ = ("bytes", "limit", "refuse_at")

    def __init__(self, message: int) -> None:
        self.bytes = 0
        self.limit = 0
        self.refuse_at = 0
        self.admit(message)

    def admit(self, message: int) -> None:
        """Set the limit for messages of at most this many bytes."""
        self.limit = max(MIN_LIMIT, MESSAGES * message)
        self.refuse_at = int(self.limit * REFUSE)

    @property
    def excess(self) -> int:
        """Bytes to free where there is no room."""
        return self.bytes - int(self.limit * RELIEVED)
