"""The picker's side of ADS: receives pools and acknowledges them.

Rules:

1. A response is applied completely or not at all. It is acknowledged only after the router uses it.
   If a pool is invalid, or the router rejects it, the response is answered with a NACK that names
   the faulty field, and the previous state stays in force.
2. Losing the control server freezes membership: nothing is discarded. The client reconnects with
   jittered delays (0.2 s to 5 s) and sends the versions that it holds.
3. Responses, pools and message sizes are bounded.
4. The client is connected once the server has accepted its first request, as the stream's initial
   metadata say, or has sent a response: a client that holds the newest state gets no response
   before the next change.

Source: the incremental xDS protocol, ``envoy/service/discovery/v3/discovery.proto``; the
subscription is the legacy wildcard (a first request that names no resource).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import grpc
import structlog
from envoy.service.discovery.v3 import ads_pb2_grpc
from envoy.service.discovery.v3 import discovery_pb2 as pb
from google.protobuf.message import DecodeError

from ext_proc.control.fields import PoolError
from ext_proc.control.pools import pool_of
from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.names import ACCEPTED_METADATA, PICKER_NODE_CLUSTER, POOL_TYPE
from tidegate_common.backoff import Backoff
from tidegate_common.lost import why_lost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ext_proc.routing.values.pool import Pool

MAX_POOLS: Final = 10_000
MAX_MESSAGE_BYTES: Final = 64 * 2**20
MAX_ERROR_CHARS: Final = 4_096

CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Detect a vanished server within 15 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # The keepalive timeout alone does not bound the wait for a ping's answer: it took a minute.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Delays between attempts are the client's own, see Backoff.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
_INVALID_ARGUMENT: Final = 3

_log = structlog.stdlib.get_logger("ext_proc.control.fleet_client")


class ServerError(Exception):
    """The server violates the protocol; the stream is closed."""


class PoolWatch:
    """The pools that one client holds; no I/O.

    Args:
        picker: This picker's id, its node id on ADS.
        take: Puts a set of pools in force; an exception rejects the set.
        cluster: Its ``node.cluster``.
    """

    def __init__(
        self,
        picker: str,
        take: Callable[[Mapping[str, Pool]], None],
        cluster: str = PICKER_NODE_CLUSTER,
    ) -> None:
        self._picker = picker
        self._cluster = cluster
        self._take = take
        self._pools: dict[str, Pool] = {}
        self._versions: dict[str, str] = {}
        self.synced = False
        """True once a response was applied: the pools are known, even if there are none."""
        self.version: str | None = None
        """The server's version of the last applied state."""
        self.taken = ""
        """Nonce of the last applied response; empty before the first."""
        self.error: str | None = None
        """Reason why the last response was rejected; ``None`` if it was applied."""

    def first_request(self) -> Any:
        """Return the first request of a stream."""
        request = pb.DeltaDiscoveryRequest(type_url=POOL_TYPE)
        request.node.id = self._picker
        request.node.cluster = self._cluster
        request.node.user_agent_name = self._cluster
        request.initial_resource_versions.update(self._versions)
        return request

    def answer(self, response: Any) -> Any:
        """Apply a ``DeltaDiscoveryResponse`` and return the request that acknowledges it."""
        request = pb.DeltaDiscoveryRequest(type_url=POOL_TYPE, response_nonce=response.nonce)
        try:
            self._apply(response)
        except Exception as error:  # noqa: BLE001 - any rejection must reach the server
            self.error = str(error)[:MAX_ERROR_CHARS] or type(error).__name__
            request.error_detail.code = _INVALID_ARGUMENT
            request.error_detail.message = self.error
        else:
            self.error = None
            self.synced = True
            self.version = response.system_version_info
            self.taken = response.nonce
        return request

    def _apply(self, response: Any) -> None:
        if response.type_url != POOL_TYPE:
            raise PoolError(f"requested {POOL_TYPE}, received {response.type_url!r}")
        pools, versions, problems = dict(self._pools), dict(self._versions), []
        for name in response.removed_resources:
            pools.pop(name, None)
            versions.pop(name, None)
        for resource in response.resources:
            try:
                pools[resource.name] = _read(resource)
            except PoolError as error:
                problems.append(str(error))
            versions[resource.name] = resource.version
        if len(pools) > MAX_POOLS:
            problems.append(f"{len(pools)} pools; the maximum is {MAX_POOLS}")
        if problems:
            raise PoolError("; ".join(problems))
        self._take(pools)
        self._pools, self._versions = pools, versions

    def state(self) -> dict[str, Any]:
        """Return the current state, for debugging."""
        return {
            "synced": self.synced,
            "version": self.version,
            "refused": self.error,
            "pools": dict(self._versions),
        }


def _read(resource: Any) -> Pool:
    message = pool_pb2.Pool()
    if resource.resource.type_url != POOL_TYPE:
        raise PoolError(f"resource {resource.name!r} is a {resource.resource.type_url!r}")
    try:
        message.ParseFromString(resource.resource.value)
    except DecodeError as error:
        raise PoolError(f"resource {resource.name!r} is not a Pool: {error}") from error
    if message.name != resource.name:
        raise PoolError(f"resource {resource.name!r} contains pool {message.name!r}")
    return pool_of(message)


class FleetClient:
    """Feeds a `PoolWatch` from the control server.

    Args:
        channel: Channel to the control server; see `CHANNEL_OPTIONS`.
        watch: The watch to feed.
        rng: Returns a number in [0, 1), for the jitter.
        on_connected: Called with True and False as the stream opens and closes.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        watch: PoolWatch,
        *,
        rng: Callable[[], float],
        on_connected: Callable[[bool], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stub = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel)
        self._watch = watch
        self._backoff = Backoff(rng)
        self._on_connected = on_connected
        self._clock = clock
        self._since: float | None = None
        self._lost: str | None = None
        self.ready = asyncio.Event()
        """Set once pools are known; it stays set."""

    async def run(self) -> None:
        """Follow the server until cancelled."""
        while True:
            try:
                await self._follow()
                self._lost = "the server ended the stream"
            except grpc.aio.AioRpcError as error:
                self._lost = why_lost(error.code().name, error.details())
            except ServerError as error:
                self._lost = str(error)
            except asyncio.InvalidStateError:
                # grpc.aio raises this when a write meets a stream that has just ended.
                self._lost = "the server ended the stream"
            finally:
                if self._since is not None:
                    self._since = None
                    self._on_connected(False)
            delay = self._backoff.delay_s()
            _log.warning("control_server_lost", reason=self._lost, retry_in_s=round(delay, 2))
            await asyncio.sleep(delay)

    async def _follow(self) -> None:
        call = self._stub.DeltaAggregatedResources()
        try:
            await call.write(self._watch.first_request())
            if ACCEPTED_METADATA in {key for key, _ in await call.initial_metadata()}:
                self._connected()
            while (response := await call.read()) is not grpc.aio.EOF:
                if response is None:
                    # grpc.aio returns None for a message that cannot be decoded.
                    raise ServerError("the server sent an invalid DeltaDiscoveryResponse")
                if self._since is None:  # a control server that sends no such metadata
                    self._connected()
                answer = self._watch.answer(response)
                if self._watch.error is None:
                    _log.info("pools_taken", version=self._watch.version)
                    self.ready.set()
                else:
                    _log.error("pools_refused", reason=self._watch.error)
                await call.write(answer)
            status = await call.code()
            if status is not grpc.StatusCode.OK:
                raise grpc.aio.AioRpcError(
                    status,
                    await call.initial_metadata(),
                    await call.trailing_metadata(),
                    await call.details(),
                )
        finally:
            call.cancel()

    def _connected(self) -> None:
        self._since = self._clock()
        self._backoff.reset()
        self._on_connected(True)

    def state(self) -> dict[str, Any]:
        """Return connection and contents, for debugging."""
        return {
            "connected_s": None if self._since is None else self._clock() - self._since,
            "last_loss": self._lost,
            **self._watch.state(),
        }
