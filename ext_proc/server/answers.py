"""A stream of Envoy for a transport that asks message by message (``h2.direct``).

It does what ``PickerServer.process`` does for one that is read from, under the same law.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from google.protobuf.message import DecodeError

from ext_proc.exchange import IllegalEventError
from ext_proc.server.stream import ExchangeStream
from ext_proc.server.wire import WireError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.observability.metrics import Metrics
    from ext_proc.server.holds import Holds
    from ext_proc.server.stream import Tools

_log = structlog.stdlib.get_logger("ext_proc.server.service")


class Cut:
    """Whether the grace of a stop is over: a stream that ends then is one that we cut.

    The transports do not tell.
    """

    __slots__ = ("begun",)

    def __init__(self) -> None:
        self.begun = False


class ExchangeHandler:
    """One stream, message by message.

    Args:
        tools: What all streams use.
        cut: Whether the picker ends them.
        holds: Who waits for companions.
    """

    __slots__ = ("_cut", "_holds", "_metrics", "_stream")

    def __init__(self, tools: Tools, cut: Cut, holds: Holds) -> None:
        self._stream = ExchangeStream(tools)
        self._metrics = tools.metrics
        self._cut = cut
        self._holds = holds
        self._metrics.streams += 1

    def answer(self, message: bytes) -> Sequence[bytes] | None:
        """Return the replies to a message; ``None`` closes the stream with OK."""
        try:
            return self._stream.answer(message)
        except Exception as error:  # noqa: BLE001 - Envoy goes on by itself
            failed(self._metrics, error)
            return None

    def pauses(self) -> bool:
        """Return whether the replies wait for companions."""
        return self._stream.hold is not None

    async def pause(self) -> None:
        """Wait for them."""
        if self._stream.hold is not None:
            await self._holds.wait(*self._stream.hold)

    def handed_over(self) -> None:
        """Note that the replies are on their way."""
        self._stream.handed_over()

    def lost(self) -> None:
        """Note that they are not."""
        self._metrics.failed("peer-gone")

    def end(self) -> None:
        """Settle."""
        self._metrics.streams -= 1
        self._stream.end(stopped=self._cut.begun)


def failed(metrics: Metrics, error: Exception) -> None:
    """Count a stream that went wrong, and say so."""
    if isinstance(error, (DecodeError, WireError, IllegalEventError)):
        metrics.failed("protocol")
        _log.warning("stream_protocol_error", error=str(error))
    else:
        metrics.failed("internal")
        _log.error("stream_failed", exc_info=error)
