"""An Envoy stream for transports that deliver it message by message (``h2.direct``).

It does the work of ``PickerServer.process``, which reads from a stream, and follows its rules.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog
from google.protobuf.message import DecodeError

from ext_proc.exchange import IllegalEventError
from ext_proc.server.stream import ExchangeStream
from ext_proc.server.wire import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ext_proc.observability.metrics import Metrics
    from ext_proc.server.holds import Holds
    from ext_proc.server.pumping import Pumping
    from ext_proc.server.stream import Tools

_log = structlog.stdlib.get_logger("ext_proc.server.service")


class Cut:
    """Whether the grace period of a stop is over: a stream that ends afterwards was cut by us.

    The transports do not report this.
    """

    __slots__ = ("begun",)

    def __init__(self) -> None:
        self.begun = False


class ExchangeHandler:
    """One stream, message by message.

    Args:
        tools: Dependencies that all streams share.
        cut: Whether the picker is ending its streams.
        holds: Groups of requests held back to arrive together.
        pumping: Lets requests go that wait for a replica.
        trace: ``traceparent`` of the call; empty = none.
    """

    __slots__ = ("_cut", "_holds", "_metrics", "_pumping", "_running", "_stream")

    def __init__(
        self, tools: Tools, cut: Cut, holds: Holds, pumping: Pumping, trace: str = ""
    ) -> None:
        self._pumping = pumping
        self._stream = ExchangeStream(tools, trace)
        self._metrics = tools.metrics
        self._running = tools.running
        self._cut = cut
        self._holds = holds
        self._metrics.streams += 1

    def attach(self, send: Callable[[bytes], None]) -> None:
        """Take how to send messages that are no replies."""
        self._running[self._stream] = send

    def costly(self, message: bytes) -> bool:
        """Return whether reading the message may take more than a fraction of a millisecond."""
        return self._stream.costly(message)

    def client(self) -> str | None:
        """Return the client whose request it is; ``None`` = unknown."""
        return self._stream.client

    def answer(self, message: bytes) -> Sequence[bytes] | None:
        """Return the replies to a message; ``None`` closes the stream with OK."""
        try:
            return self._stream.answer(message)
        except Exception as error:  # noqa: BLE001 - Envoy continues by itself
            failed(self._metrics, error)
            return self._stream.failed()

    def pauses(self) -> bool:
        """Return whether the replies are held for companions, or the request waits."""
        return self._stream.hold is not None or self._stream.queued

    def waits(self) -> bool:
        """Return whether the request waits for a replica."""
        return self._stream.queued

    async def wait(self) -> Sequence[bytes]:
        """Wait until the request is decided, and return the replies."""
        return await released(self._stream, self._pumping)

    async def pause(self) -> None:
        """Wait until the replies are released."""
        if self._stream.hold is not None:
            await self._holds.wait(*self._stream.hold)

    def handed_over(self) -> None:
        """Record that the replies have been handed to the transport."""
        self._stream.handed_over()

    def lost(self) -> None:
        """Record that the replies could not be delivered."""
        self._metrics.failed("peer-gone")

    def end(self) -> None:
        """Settle the exchange."""
        self._metrics.streams -= 1
        self._running.pop(self._stream, None)
        self._stream.end(stopped=self._cut.begun)


async def released(stream: ExchangeStream, pumping: Pumping) -> Sequence[bytes]:
    """Wait until the request of a stream is decided, and return the replies."""
    decided = asyncio.Event()
    stream.when_released(decided.set)
    pumping.begin()
    await decided.wait()
    return stream.released()


def failed(metrics: Metrics, error: Exception) -> None:
    """Count and log a stream that failed."""
    if isinstance(error, (DecodeError, WireError, IllegalEventError)):
        metrics.failed("protocol")
        _log.warning("stream_protocol_error", error=str(error))
    else:
        metrics.failed("internal")
        _log.error("stream_failed", exc_info=error)
