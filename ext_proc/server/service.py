"""The picker's gRPC service: runs an exchange for each of Envoy's streams.

Rules:

1. One stream is one exchange. Whatever ends it, its ticket settles before the handler returns.
2. No exception of ours reaches Envoy: a stream that fails is closed with OK and counted, so Envoy
   continues by itself (fail open). Where a pick is required, it is refused first.
3. A cancellation after the pick was handed over is a normal end: Envoy cancels a stream when it
   needs nothing more of it.
4. A waiting stream keeps no message: a long-lived stream would otherwise hold its body throughout.
5. A reply that the transport took was handed over, though the call is cancelled before the handler
   goes on: on a busy machine a short answer is over by then.

Our own transport delivers a stream message by message (``h2.direct``), to an ``ExchangeHandler``;
from gRPC's, ``PickerServer.process`` reads it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2_grpc

from ext_proc.exchange import IllegalEventError
from ext_proc.exchange.known import USUAL
from ext_proc.observability.records import TRACEPARENT
from ext_proc.routing.values.refusal import NO_PICK
from ext_proc.server.holds import Holds
from ext_proc.server.pumping import Pumping
from ext_proc.server.stream import ExchangeStream, Tools
from ext_proc.server.transport import server as server_over
from ext_proc.server.wire import METHOD, SERVICE, WireError, Writer
from ext_proc.settings import AddressError
from tidegate_common.health import HealthService
from tidegate_common.readable import ReadableServer

if TYPE_CHECKING:
    from collections.abc import (
        Awaitable,
        Callable,
        Coroutine,
        Generator,
        Iterable,
        Sequence,
    )

    from ext_proc.exchange import ExchangeOptions
    from ext_proc.observability.metrics import Metrics
    from ext_proc.observability.records import RequestRecords
    from ext_proc.observability.tracing import Tracing
    from ext_proc.routing.router import Router
    from ext_proc.server.port import PortSecurity
    from ext_proc.settings import Transport

    Loads = Sequence[tuple[str, str]]


MESSAGE_ROOM: Final = 2**20
"""Bytes that a message may have besides a request's body."""
MAX_MESSAGE_BYTES: Final = 256 * 2**20 + MESSAGE_ROOM
"""Maximum bytes of one message: the largest body that a pool may request (``routing.max_body`` is
at most 256 MiB) and room for the rest. A larger message breaks its stream, and Envoy then
continues by itself."""
FIRST_BODY_BYTES: Final = 4 * 2**20
"""Largest body before the pools are known: the default of ``routing.max_body``."""

LOOK_S: Final = 0.05
"""Interval, while stopping, between checks for open exchanges."""
NEVER_S: Final = 3600.0
"""Seconds that outlast any stop."""

_READINESS: Final = ("", "readiness", SERVICE)
_LIVENESS: Final = "liveness"


class PickerServer:
    """Serves ``envoy.service.ext_proc.v3.ExternalProcessor`` and gRPC health.

    Args:
        router: The request router.
        picker: This picker's id.
        metrics: Counters to increment.
        at: Address by which the fleet knows this picker.
        life: Prefix of tickets in access logs, different after each start.
        handlers: Further services on the same port.
        on_loads: Receives a replica's id and the load-report headers of its response.
        tracing: Creates spans; ``None`` = tracing is off.
        refresh: Called before all that may lead to a decision; ``None`` = nothing to do.
        transport: gRPC implementation.
        security: Identity and roles of the port; ``None`` = no TLS.
        clock: Monotonic seconds.
        wall_clock: Unix seconds.
        options: What all exchanges share.
        records: Keeps what became of requests; by default records of its own.
    """

    def __init__(
        self,
        router: Router,
        *,
        picker: str,
        metrics: Metrics,
        at: str = "",
        life: str = "",
        handlers: Sequence[grpc.GenericRpcHandler] = (),
        on_loads: Callable[[str, Loads], None] = lambda *_: None,
        tracing: Tracing | None = None,
        refresh: Callable[[], None] | None = None,
        transport: Transport = "grpc",
        security: PortSecurity | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        options: ExchangeOptions = USUAL,
        records: RequestRecords | None = None,
    ) -> None:
        self._identity = (picker, at, life)
        self._slot = ""
        self._tools = Tools(
            router,
            Writer(*self._identity),
            metrics,
            on_loads,
            tracing,
            refresh,
            clock,
            wall_clock,
            options,
            records,
        )
        self._holds = Holds()
        self._pumping = Pumping(router, clock, wall_clock, refresh)
        self._sending: set[asyncio.Future[None]] = set()
        self._handlers = tuple(handlers)
        self._transport = transport
        self._security = security
        self._stopping = False
        self._cut = Cut()
        self._health = HealthService()
        self._limit = FIRST_BODY_BYTES + MESSAGE_ROOM
        self._server: Any = None
        """gRPC's server, or one that serves the same handlers."""

    async def start(self, address: str) -> str:
        """Listen on ``ip:port`` (port 0 = any free port) and return the bound address.

        Raises:
            AddressError: The address is in use or not local.
        """
        server = server_over(self._transport, limit=self._limit, security=self._security)
        self.serve_on(server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, ReadableServer(server))
        try:
            port = server.add_port(address)
        except RuntimeError as error:
            raise AddressError(
                f"cannot listen on {address}: it is in use or not an address of this machine;"
                " choose another with --listen"
            ) from error
        self._health.set(_LIVENESS, serving=True)
        self.set_ready(ready=False)
        await server.start()
        self._server = server
        return f"{address.rpartition(':')[0]}:{port}"

    def serve_on(self, server: Any) -> None:
        """Register with a server of ``ext_proc.server.transport``; the caller starts it."""
        handler: Any = grpc.stream_stream_rpc_method_handler(self.process)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}), *self._handlers)
        )
        direct = getattr(server, "direct", None)
        if direct is not None:  # our own transport needs no task per stream
            direct[f"/{SERVICE}/{METHOD}"] = self._answers

    def expect_bodies(self, most: int) -> None:
        """Bound messages by the largest body that a pool reads, in bytes."""
        self._limit = min(most + MESSAGE_ROOM, MAX_MESSAGE_BYTES)
        if self._server is not None and not self._stopping:
            self._server.set_limit(self._limit)

    def set_log_slot(self, slot: int | None) -> None:
        """Set the slot of Envoy's log sinks that picks name from now on; ``None`` = none."""
        text = "" if slot is None else str(slot)
        if text != self._slot:
            self._slot = text
            self._tools.writer = Writer(*self._identity, text)

    def set_ready(self, *, ready: bool) -> None:
        """Set readiness in the gRPC health service; ``liveness`` stays SERVING."""
        for service in _READINESS:
            self._health.set(service, serving=ready and not self._stopping)

    async def stop(self, grace_s: float) -> None:
        """Accept no new streams; after ``grace_s`` seconds cancel those still open.

        It returns as soon as no exchange is open. It does not wait for log and health streams,
        which the proxy never ends by itself.
        """
        self._stopping = True
        self.set_ready(ready=False)
        if self._server is None:
            return
        # gRPC's server crashes the process when a second call of `stop` meets the end of the first
        # call's grace. So the first grace never ends: `stop(None)` cuts it short.
        ends = time.monotonic() + grace_s
        stopped = asyncio.create_task(self._server.stop(grace_s + NEVER_S))
        while not stopped.done() and (left_s := ends - time.monotonic()) > 0:
            await asyncio.wait({stopped}, timeout=min(LOOK_S, left_s))
            if not self._tools.metrics.streams:
                break
        if not stopped.done():
            # Told now, those that wait do not go on to the replicas together.
            self._tools.router.queue.end(NO_PICK)
            await asyncio.sleep(0)
            self._cut.begun = True
            await self._server.stop(None)
        await stopped

    async def process(self, _: Any, context: Any) -> None:
        """Handle one stream of Envoy; wire messages are bytes."""
        metrics = self._tools.metrics
        trace = next((v for k, v in context.invocation_metadata() or () if k == TRACEPARENT), "")
        stream = ExchangeStream(self._tools, trace)
        replies: Sequence[bytes]
        metrics.streams += 1
        running = self._tools.running
        running[stream] = context.write
        try:
            while (data := await context.read()) is not grpc.aio.EOF:
                try:
                    replies = stream.answer(data)
                except Exception as error:
                    if (last := stream.failed()) is None:
                        raise
                    failed(metrics, error)
                    replies = last
                data = b""  # rule 4
                if stream.queued:
                    await _write(context, replies)
                    replies = await released(stream, self._pumping)
                if stream.handing_over:
                    if stream.hold is not None:
                        await self._holds.wait(*stream.hold)
                    await _hand_over(context, stream, replies)
                else:
                    await _write(context, replies)
                replies = ()
        except _PeerGoneError:
            metrics.failed("peer-gone")
        except Exception as error:  # noqa: BLE001 - rule 2: Envoy continues by itself
            failed(metrics, error)
        finally:
            metrics.streams -= 1
            del running[stream]
            stream.end(stopped=self._cut.begun)

    def leave(self, found: Iterable[tuple[int, bool, bool]]) -> None:
        """Let requests leave replicas that are found hung.

        Args:
            found: Of each its ticket, whether another replica has read it before, and whether its
                replica does not answer probes either.
        """
        hung: dict[int | None, list[bool]] = {ticket_id: rest for ticket_id, *rest in found}
        if not hung:
            return
        for stream, send in tuple(self._tools.running.items()):
            rest = hung.get(stream.ticket_id)
            if rest is None:
                continue
            read_before, mute = rest
            message = stream.leave(read_before=read_before, mute=mute)
            sent = None if message is None else send(message)
            if sent is not None:
                sending = asyncio.ensure_future(_over(sent))
                self._sending.add(sending)
                sending.add_done_callback(self._sending.discard)

    def _answers(self, trace: str) -> ExchangeHandler:
        """Handle one stream of Envoy, message by message."""
        return ExchangeHandler(self._tools, self._cut, self._holds, self._pumping, trace)


async def _over(sent: Awaitable[None]) -> None:
    """Wait for a write beside the task that reads the stream."""
    with contextlib.suppress(Exception):  # the stream has ended meanwhile
        await sent


class _PeerGoneError(Exception):
    """A reply could not be handed to the transport."""


async def _hand_over(context: Any, stream: ExchangeStream, replies: Sequence[bytes]) -> None:
    """Write the replies of a decision.

    Raises:
        _PeerGoneError: The call is gone.
    """
    for number, reply in enumerate(replies, 1):
        write = _Write(context.write(reply))
        try:
            await write
        except asyncio.CancelledError:
            if number == len(replies) and write.taken:
                stream.handed_over()  # rule 5
            raise
        except Exception as error:
            raise _PeerGoneError from error
    stream.handed_over()


class _Write:
    """A write to the transport that tells, when it is cancelled, whether it was done by then.

    gRPC completes a future when it has taken the bytes. A cancellation that comes before the
    handler's task runs again is raised all the same.
    """

    __slots__ = ("_operation", "_write")

    def __init__(self, write: Coroutine[Any, Any, None]) -> None:
        self._write = write
        self._operation: Any = None
        """What the write waits for."""

    def __await__(self) -> Generator[Any, None, None]:
        for operation in self._write.__await__():
            self._operation = operation
            yield operation

    @property
    def taken(self) -> bool:
        """Whether the transport has taken the bytes."""
        operation = self._operation
        return (
            isinstance(operation, asyncio.Future)
            and operation.done()
            and not operation.cancelled()
            and operation.exception() is None
        )


async def _write(context: Any, replies: Sequence[bytes]) -> None:
    """Write replies.

    Raises:
        _PeerGoneError: A reply could not be handed to the transport.
    """
    try:
        for reply in replies:
            await context.write(reply)
    except Exception as error:
        raise _PeerGoneError from error


_log = structlog.stdlib.get_logger("ext_proc.server.service")


class Cut:
    """Whether the grace period of a stop is over: a stream that ends afterwards was cut by us.

    The transports do not report this.
    """

    __slots__ = ("begun",)

    def __init__(self) -> None:
        self.begun = False


class ExchangeHandler:
    """One stream that its transport delivers message by message.

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
