"""Envoys and pickers of a simulated world, and their streams of ADS."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
from envoy.service.discovery.v3 import discovery_pb2

from support.ads_peers import _FIRST, _NAMED, endpoints_of
from support.chaos.control.values import BEGINS_S, GONE_S, WAY_S, BrokenError
from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.names import CLUSTER_TYPE, ENDPOINT_TYPE, PICKER_NODE_CLUSTER, POOL_TYPE
from xds_server.leading.keeper import LOOKS_S

if TYPE_CHECKING:
    from support.chaos.control.world import Host, World


class Stream:
    """A stream of ADS between a client and a server."""

    def __init__(self, host: Host, client: Client) -> None:
        self.host, self.client = host, client
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self.closed = False
        host.streams.add(self)

    # --- the client's side

    def send(self, request: Any) -> None:
        """Send a request."""
        host, data = self.host, request.SerializeToString()

        def take() -> None:
            if not self.closed:
                host.world.point(host, "reads")
                self.requests.put_nowait(data)

        host.call_later(WAY_S, take)

    def leave(self) -> None:
        """End it."""
        self.closed = True
        self.host.streams.discard(self)
        self.host.call_later(WAY_S, self.requests.put_nowait, None)

    # --- the server's side, as gRPC's context

    async def serve(self, handler: Any) -> None:
        """Run the handler until the stream ends."""
        try:
            await handler.stream_stream(None, self)
        except AbortedError:
            pass
        finally:
            self.broken()

    def broken(self) -> None:
        """Tell the client that it has ended."""
        self.host.streams.discard(self)
        if not self.closed:
            self.closed = True
            self.client.loop.call_later(WAY_S, self.client.lost, self)

    def peer(self) -> str:
        """Return the client's address."""
        return self.client.node

    async def read(self) -> Any:
        """Return the next request."""
        data = await self.requests.get()
        return grpc.aio.EOF if data is None else self.host.world.parse(data)

    async def write(self, data: bytes) -> None:
        """Send a response."""
        host = self.host
        host.world.point(host, "writes")
        if host.epoch < host.world.epoch and self.loop_time() > host.stopped_until + 2 * LOOKS_S:
            host.world.errors.append(f"{host.address} serves after another one leads")
        if self.host.alive:
            self.client.loop.call_later(WAY_S, self.client.take, self, data, self.host.epoch)

    def loop_time(self) -> float:
        """Return virtual seconds."""
        return self.host.network.now

    async def send_initial_metadata(self, _: Any) -> None:
        """Accept the client."""

    async def abort(self, _: Any, text: str = "") -> None:
        """End it."""
        raise AbortedError(text)


class AbortedError(Exception):
    """A server ends a stream."""


class Client:
    """An Envoy or a picker: it keeps what it has, and goes to any server that answers."""

    def __init__(self, world: World, node: str, manner: str = "good") -> None:
        self.world, self.node, self.manner = world, node, manner
        self.kind: Any = "picker" if node.startswith("picker") else "envoy"
        self.loop = world.people
        self.held: dict[str, dict[str, tuple[str, bytes]]] = {}
        self.names: dict[str, tuple[str, ...]] = {}
        self.stream: Stream | None = None
        self.epoch = 0
        """Of the newest leader of which something was taken."""
        self.loop.create_task(self._look())

    async def _look(self) -> None:
        """Go to another server where this one does not answer."""
        stopped_s = 0.0
        while True:
            if self.stream is None:
                hosts = [each for each in self.world.hosts.values() if each.port is not None]
                if hosts:
                    self._connect(self.world.rng.choice(hosts))
            elif not self.stream.host.alive:
                self.stream = None
            elif self.stream.host.stopped_until > self.loop.time():
                stopped_s += 0.5
                if stopped_s >= GONE_S:
                    self.stream.leave()
                    self.stream, stopped_s = None, 0.0
            else:
                stopped_s = 0.0
            await asyncio.sleep(0.5)

    def _connect(self, host: Host) -> None:
        stream = self.stream = Stream(host, self)

        def arrive() -> None:
            if host.port is None:
                stream.broken()
            else:
                host.port(stream)

        host.call_later(WAY_S, arrive)
        cluster = PICKER_NODE_CLUSTER if self.kind == "picker" else "test"
        node: Any = {"id": self.node, "cluster": cluster}
        self.names = dict(_NAMED)
        if self.held.get(CLUSTER_TYPE):
            self.names[ENDPOINT_TYPE] = self._endpoints()
        for url in _FIRST[self.kind]:
            if url == ENDPOINT_TYPE and ENDPOINT_TYPE not in self.names:
                continue
            have = {name: version for name, (version, _) in self.held.get(url, {}).items()}
            names = self.names.get(url, ())
            self._send(url, names, node=node, have=have)
            node = None

    def lost(self, stream: Stream) -> None:
        """Note that a stream has ended."""
        if self.stream is stream:
            self.stream = None

    def take(self, stream: Stream, data: bytes, epoch: int) -> None:
        """Take a response."""
        if self.stream is not stream or (stream.closed and not stream.host.alive):
            return
        response = discovery_pb2.DeltaDiscoveryResponse.FromString(data)
        if epoch < self.epoch:
            raise BrokenError(f"{self.node} has seen epoch {self.epoch}, and takes {epoch}")
        self.epoch = epoch
        url = response.type_url
        if self.manner == "mute" and self.loop.time() > BEGINS_S:
            return
        if self.manner == "refusing" and self.loop.time() > BEGINS_S:
            self._send(url, (), nonce=response.nonce, error="no")
            return
        held = self.held.setdefault(url, {})
        for name in response.removed_resources:
            held.pop(name, None)
        held.update({each.name: (each.version, each.resource.value) for each in response.resources})
        self._send(url, (), nonce=response.nonce)
        if url == CLUSTER_TYPE:
            now, known = self._endpoints(), self.names.get(ENDPOINT_TYPE, ())
            if now != known:
                self.names[ENDPOINT_TYPE] = now
                gone = sorted(set(known) - set(now))
                self._send(ENDPOINT_TYPE, sorted(set(now) - set(known)), gone=gone)
                for each in gone:
                    self.held.get(ENDPOINT_TYPE, {}).pop(each, None)
        self.world.seen(self)

    def _endpoints(self) -> tuple[str, ...]:
        clusters = {name: data for name, (_, data) in self.held[CLUSTER_TYPE].items()}
        return endpoints_of(clusters)

    def _send(
        self,
        url: str,
        names: Any,
        *,
        node: Any = None,
        have: Any = None,
        gone: Any = (),
        nonce: str = "",
        error: str = "",
    ) -> None:
        more = {"node": node} if node else {}
        if error:
            more["error_detail"] = {"code": 3, "message": error}
        if self.stream is not None:
            self.stream.send(
                discovery_pb2.DeltaDiscoveryRequest(
                    type_url=url,
                    resource_names_subscribe=names,
                    resource_names_unsubscribe=gone,
                    initial_resource_versions=have or {},
                    response_nonce=nonce,
                    **more,
                )
            )

    def draining(self, replica: str) -> bool:
        """Return whether the picker knows that a replica drains."""
        found = self.held.get(POOL_TYPE, {}).get("llm")
        if found is None:
            return False
        known = pool_pb2.Pool.FromString(found[1])
        return any(each.draining for each in known.endpoints if each.id == replica)
