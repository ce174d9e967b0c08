"""Calls answered message by message, without a task of their own.

Rules:

1. Messages are answered in order, in the loop iteration in which they arrived, and after everything
   that arrived with them: a reset of the stream in the same chunk of input is already known.
2. A message whose answer is costly waits for its turn (``turns``).
3. Only replies that have to wait create a task: for companions (``DirectHandler.pause``), or for a
   peer that does not read. Messages that arrive meanwhile stay unread, as with any handler.
4. ``DirectHandler.end`` is called exactly once, whatever ends the call, and before its status is
   sent. A bug in a ``DirectHandler`` ends its own call only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import grpc
import structlog

from ext_proc.server.h2.frames import PREFIX, framed
from ext_proc.server.h2.stream import GoneError, Http2Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ext_proc.server.h2.held import Held
    from ext_proc.server.h2.stream import Channel

_log = structlog.stdlib.get_logger("ext_proc.server.h2")


class DirectHandler(Protocol):
    """Answers the messages of one call."""

    def attach(self, send: Callable[[bytes], None]) -> None:
        """Take how to send messages that are no replies, while the call goes on."""

    def costly(self, message: bytes) -> bool:
        """Return whether the message may take more than a fraction of a millisecond."""

    def client(self) -> str | None:
        """Return the client whose call it is; ``None`` = only its connection is known."""

    def answer(self, message: bytes) -> Sequence[bytes] | None:
        """Return the replies to a message; ``None`` ends the call with OK."""

    def pauses(self) -> bool:
        """Return whether the replies to the last message are held back."""

    async def pause(self) -> None:
        """Wait until the replies to the last message may be sent."""

    def waits(self) -> bool:
        """Return whether the replies are sent at once, and further ones to the message follow."""

    async def wait(self) -> Sequence[bytes]:
        """Return the further replies."""

    def handed_over(self) -> None:
        """Record that the replies to the last message have been handed to the transport."""

    def lost(self) -> None:
        """Record that the replies were not sent: the call is gone."""

    def end(self) -> None:
        """Handle the end of the call."""


class DirectStream(Http2Stream):
    """A call answered by a ``DirectHandler``.

    Args:
        connection: Connection of the stream.
        number: HTTP/2 stream id.
        limit: Maximum bytes of a message.
        held: Counter of what all streams hold.
        answers: Handler of the call's messages.
    """

    __slots__ = ("_answers", "_ended", "_its_turn", "_over", "_slow")

    def __init__(
        self, connection: Channel, number: int, limit: int, held: Held, answers: DirectHandler
    ) -> None:
        super().__init__(connection, number, limit, held)
        self._answers = answers
        self._slow = False
        """Replies or a costly message are waiting, and messages stay unread."""
        self._its_turn = False
        self._over = False
        self._ended: asyncio.Future[None] | None = None
        """Completed at the end of the call; a stopping server waits for it."""
        answers.attach(self._push)

    def close(self) -> None:
        """Handle that the stream is gone."""
        super().close()
        self._end()

    def waiter(self) -> asyncio.Future[None] | None:
        """Return a future completed at the end of the call, ``None`` if it is over."""
        if self._over:
            return None
        if self._ended is None:
            self._ended = self._connection.loop.create_future()
        return self._ended

    def _cancel(self, status: grpc.StatusCode) -> None:
        if not self._over:
            super()._cancel(status)
            self._finish()

    def pump(self) -> None:
        """Answer the messages that have arrived."""
        try:
            while self._unread and not self._slow and not self._over:
                self._next()
            if self.ended and not self._unread and not self._slow:
                self._finish()
        except Exception:  # noqa: BLE001 - rule 4
            self._failed()

    def _next(self) -> None:
        message = self._unread[0]
        if not self._its_turn and self._answers.costly(message):
            connection = self._connection
            if not connection.turns.take(connection.loop):
                self._slow = True
                client = self._answers.client() or connection
                connection.turns.add(connection.loop, client, self._go_on)
                return
        self._its_turn = False
        self._unread.popleft()
        self.heard_of = True
        self._took(PREFIX + len(message))
        answers = self._answers
        replies = answers.answer(message)
        if replies is None:
            self._finish()
            return
        if answers.pauses():
            self._wait(replies, paused=True)
            return
        for number, reply in enumerate(replies, 1):
            if self._connection.send(self, framed(reply)):
                self._wait(replies[number:], paused=False)
                return
        answers.handed_over()

    def _push(self, message: bytes) -> None:
        """Send a message that is no reply."""
        if not self._over and not self.closed:
            self._connection.send(self, framed(message))

    def _go_on(self) -> bool:
        """Answer the message that has waited for its turn."""
        self._slow = False
        if self._over or self.closed:
            return False
        self._its_turn = True
        self.pump()
        return True

    def _wait(self, replies: Sequence[bytes], *, paused: bool) -> None:
        self._slow = True
        self.task = self._connection.loop.create_task(self._write_waiting(replies, paused=paused))

    async def _write_waiting(self, replies: Sequence[bytes], *, paused: bool) -> None:
        try:
            if paused:
                if self._answers.waits():
                    for reply in replies:
                        await self.write(reply)
                    replies = await self._answers.wait()
                await self._answers.pause()
            else:
                await self._connection.drained(self)
            for reply in replies:
                await self.write(reply)
            self._answers.handed_over()
        except asyncio.CancelledError:
            return  # the call is over
        except GoneError:
            self._answers.lost()
        except Exception:  # noqa: BLE001 - rule 4
            self._failed()
        self._slow, self.task = False, None
        self.pump()

    def _wake(self) -> None:
        self._connection.ready.append(self)

    def _failed(self) -> None:
        """End the call after an exception of its handler, which is being handled."""
        self.status = grpc.StatusCode.UNKNOWN
        _log.exception("handler_failed")
        self._finish()

    def _finish(self) -> None:
        """End the call with its status."""
        if not self._over:
            self._end()
            if not self.closed:
                self._connection.finish(self)

    def _end(self) -> None:
        if not self._over:
            self._over = True
            try:
                self._answers.end()
            except Exception:  # noqa: BLE001 - rule 4
                _log.exception("handler_failed")
            if self._ended is not None:
                self._ended.set_result(None)
