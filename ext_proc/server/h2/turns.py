"""Shares the loop's time among connections and callers, by counts. Pure: the loop is an argument.

Rules:

1. Of one connection at most ``PORTION`` frames are taken in one iteration of the loop, a frame that
   opens a stream counting as ``OPENING``. The rest of what has arrived waits, and its peer is not
   read from until it has been taken.
2. One costly reading is done in one iteration of the loop: the first goes at once.
3. What waits, portions and readings, takes turns: one in each iteration, client by client.
   Between two iterations the loop serves whatever else has arrived.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

PREFACE_BYTES: Final = 24
"""Bytes that a client sends before its first frame."""
HEADER_BYTES: Final = 9
OPENING: Final = 8
PORTION: Final = 512
"""Frames; at 9 for each stream that is opened and reset, 56 of these, which take 3 to 5 ms."""

_HEADERS: Final = 1
_TYPE: Final = 3


class Portions:
    """Finds where a portion of received bytes ends, by the frames' headers (RFC 9113, 4.1)."""

    __slots__ = ("_head", "_left")

    def __init__(self) -> None:
        self._left = PREFACE_BYTES
        """Bytes of the current frame that have not arrived."""
        self._head = b""
        """The beginning of a frame's header."""

    def end(self, data: bytes) -> int:
        """Return how many bytes are the next portion; they count as taken."""
        begun = len(self._head)
        if begun:
            data = self._head + data
        size, position, room = len(data), self._left, PORTION
        while position + HEADER_BYTES <= size:
            room -= OPENING if data[position + _TYPE] == _HEADERS else 1
            if room < 0:
                self._head, self._left = b"", 0
                return position - begun
            length = data[position] << 16 | data[position + 1] << 8 | data[position + 2]
            position += HEADER_BYTES + length
        self._head = data[position:]
        self._left = max(0, position - size)
        return size - begun


class Turns:
    """What waits for its turn, by client."""

    __slots__ = ("_busy", "_loop", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[object, deque[Callable[[], bool]]] = {}
        """In the order of turns; each connection and each open stream is in it once at most."""
        self._busy = False
        """This iteration of the loop has had its costly reading."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def take(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether a costly reading may be done now; otherwise it is to be added."""
        if self._busy:
            return False
        self._begin(loop)
        return True

    def add(
        self, loop: asyncio.AbstractEventLoop, client: object, work: Callable[[], bool]
    ) -> None:
        """Do ``work`` when the turn of ``client`` comes; it returns whether it did anything."""
        waiting = self._waiting.get(client)
        if waiting is None:
            self._waiting[client] = deque((work,))
        else:
            waiting.append(work)
        if not self._busy:
            self._begin(loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._busy, self._loop = True, loop
        loop.call_soon(self._next)

    def _next(self) -> None:
        """Do one thing that waits."""
        done = False
        while self._waiting and not done:
            client = next(iter(self._waiting))
            waiting = self._waiting.pop(client)
            work = waiting.popleft()
            if waiting:
                self._waiting[client] = waiting  # behind all others
            done = work()
        if done and self._loop is not None:
            self._loop.call_soon(self._next)
        else:
            self._busy = False
