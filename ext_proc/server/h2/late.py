"""Finds frames and messages that peers begin and do not complete. Pure: time is an argument.

Rules:

1. A message must be complete within ``MESSAGE_S`` of the look that found it begun, and ``1 /
   MIN_RATE`` more for each byte of it that has arrived. While messages before it wait to be read,
   its peer is not to blame.
2. A stream must have its first message within ``FIRST_S``.
3. A connection whose input completes no frame for ``MESSAGE_S`` is cut. Some frames leave no trace,
   so it is first asked for an answer, which a peer in the middle of a frame cannot give.
4. Nothing is done for what is complete: each look, every ``LOOK_S``, visits all streams, and
   remembers only those that are late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ext_proc.server.h2.stream import Channel, Http2Stream

LOOK_S: Final = 2.0
MESSAGE_S: Final = 10.0
MIN_RATE: Final = 2**20
"""Bytes per second at which a long message must at least arrive."""
FIRST_S: Final = 60.0


class LateInput:
    """Remembers what was incomplete at the last look; see the module's rules."""

    def __init__(self) -> None:
        self._messages: dict[Http2Stream, tuple[int, float]] = {}
        """Number of the message that is incomplete, and the time of the look that found it."""
        self._frames: dict[Channel, tuple[object, float]] = {}

    def look(self, connections: Iterable[Channel], now: float) -> None:
        """End streams and connections that are late, and ask those that may be."""
        messages, self._messages = self._messages, {}
        frames, self._frames = self._frames, {}
        for connection in list(connections):
            if (mark := connection.incomplete) is not None:
                known = frames.get(connection)
                if known is None or known[0] is not mark:
                    self._frames[connection] = mark, now
                    connection.ask()
                elif now - known[1] >= MESSAGE_S:
                    connection.cut()
                    continue
                else:
                    self._frames[connection] = known
            for stream in list(connection.streams.values()):
                self._look_at(stream, messages, now)

    def _look_at(
        self, stream: Http2Stream, messages: dict[Http2Stream, tuple[int, float]], now: float
    ) -> None:
        number = stream.incomplete
        if number is None:
            return
        begun, since = messages.get(stream, (None, now))
        if begun != number:
            self._messages[stream] = number, now
            return
        allowed_s = MESSAGE_S + stream.beginning / MIN_RATE if stream.beginning else FIRST_S
        if now - since >= allowed_s:
            stream.expire(f"a message was not complete after {now - since:.0f} s")
        else:
            self._messages[stream] = number, since
