"""Receives pushed readings: ``tidegate.telemetry.v1.Telemetry`` on the picker's port.

Rules:

1. Of two streams of one endpoint the newer counts; a stream's readings are removed when it ends.
2. An invalid report ends its stream with INVALID_ARGUMENT and changes nothing.
3. A stream may only report on an endpoint that its peer's certificate names; another one is ended
   with PERMISSION_DENIED, and changes nothing.
4. At most ``MAX_STREAMS`` streams are open. A stream that reports more often than every ``EVERY_S``
   is read no faster than that: it waits, and flow control holds it back.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any, Final

import grpc

from ext_proc.telemetry import report
from tidegate_api.telemetry.v1 import telemetry_pb2
from tidegate_common.tls.rpc import validity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ext_proc.routing.values.reading import Reading
    from tidegate_common.tls.pem import Validity

SERVICE: Final = "tidegate.telemetry.v1.Telemetry"
MAX_STREAMS: Final = 4096
EVERY_S: Final = 0.01

_DONE: Final = telemetry_pb2.Summary().SerializeToString()


def ending(held: Mapping[str, Validity], now: float, max_age_s: float) -> dict[str, str]:
    """Return which endpoints' reporters have certificates that end soon, and when.

    Args:
        held: When certificates hold, by endpoint id.
        now: Unix seconds.
        max_age_s: Most seconds that a connection lasts.
    """
    return {
        endpoint: f"its reporter's {'ends' if each.ends > now else 'has ended'} at"
        f" {time.strftime('%Y-%m-%d %H:%M', time.gmtime(each.ends))} UTC"
        for endpoint, each in held.items()
        if each.is_overdue(now, max_age_s)
    }


class Push:
    """The gRPC service.

    Args:
        on_readings: Called with an endpoint's id, all readings of its stream and their time.
        on_restart: Called with an endpoint's id, before its readings.
        on_end: Called with an endpoint's id when its stream has ended.
        clock: Monotonic seconds.
        not_named: Returns why a call's peer may not speak for an endpoint, by its context and the
            endpoint's id; ``None`` = it may.
    """

    def __init__(
        self,
        on_readings: Callable[[str, tuple[Reading, ...], float], None],
        on_restart: Callable[[str], None],
        on_end: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        not_named: Callable[[Any, str], str | None] = lambda *_: None,
    ) -> None:
        self._not_named = not_named
        self._on_readings = on_readings
        self._on_restart = on_restart
        self._on_end = on_end
        self._clock = clock
        self._numbers = itertools.count(1)
        self._open = 0
        self._owners: dict[str, int] = {}
        self.certificates: dict[str, Validity] = {}
        """When the certificates of reporters hold, by endpoint id, where it is known."""
        self.refused = 0
        """Number of streams ended for an invalid report."""
        self.reports = 0

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler for a gRPC server; messages are bytes, so their size is bounded."""
        method: Any = grpc.stream_unary_rpc_method_handler(self.follow)
        return grpc.method_handlers_generic_handler(SERVICE, {"Report": method})

    def state(self) -> dict[str, object]:
        """Return the open streams, for debugging."""
        return {
            "streams": self._open,
            "endpoints": len(self._owners),
            "reports": self.reports,
            "refused": self.refused,
        }

    async def follow(self, _: Any, context: Any) -> bytes:
        """Read one stream until it ends (gRPC)."""
        if self._open >= MAX_STREAMS:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} streams are already open"
            )
        number, values, endpoint = next(self._numbers), report.ReportedValues(), ""
        self._open += 1
        before = float("-inf")
        try:
            while (data := await context.read()) is not grpc.aio.EOF:
                now = self._clock()
                try:
                    update = report.read(data, now)
                    readings, restarted = values.take(update, now)
                except report.BadReport as error:
                    self.refused += 1
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
                if not endpoint and (reason := self._not_named(context, update.endpoint)):
                    self.refused += 1
                    await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
                self.reports += 1
                if not endpoint:
                    endpoint = update.endpoint
                    self._own(endpoint, number, context)
                if self._owners.get(endpoint) == number:
                    if restarted:
                        self._on_restart(endpoint)
                    self._on_readings(endpoint, readings, now - update.age_s)
                if now - before < EVERY_S:
                    await asyncio.sleep(EVERY_S)
                before = now
        finally:
            self._open -= 1
            if self._owners.get(endpoint) == number:
                del self._owners[endpoint]
                self.certificates.pop(endpoint, None)
                self._on_end(endpoint)
        return _DONE

    def _own(self, endpoint: str, number: int, context: Any) -> None:
        if number < self._owners.get(endpoint, 0):
            return
        self._owners[endpoint] = number
        self.certificates.pop(endpoint, None)
        held = validity_of(context)
        if held is not None:
            self.certificates[endpoint] = held
