"""Small clients of the ADS port: a correct one, and the kinds that hold a control server up.

Each reconnects after its stream has ended, as Envoys do. All are asynchronous context managers.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import grpc
from envoy.config.cluster.v3 import cluster_pb2
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from envoy.service.runtime.v3 import rtds_pb2

from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.names import (
    CLUSTER_TYPE,
    ENDPOINT_TYPE,
    LISTENER_TYPE,
    PICKER_NODE_CLUSTER,
    POOL_TYPE,
    ROUTE_CONFIG_NAME,
    ROUTE_TYPE,
    RUNTIME_NAME,
    RUNTIME_TYPE,
    WEIGHT_LAYERS,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

Kind = Literal["envoy", "picker"]
Variant = Literal["delta", "sotw"]
Names: TypeAlias = tuple[str, ...]

RECONNECT_S = 0.2
_NAMED: dict[str, Names] = {
    ROUTE_TYPE: (ROUTE_CONFIG_NAME,),
    RUNTIME_TYPE: (RUNTIME_NAME, *WEIGHT_LAYERS),
}
_FIRST: dict[Kind, Names] = {
    "envoy": (RUNTIME_TYPE, CLUSTER_TYPE, ENDPOINT_TYPE, LISTENER_TYPE, ROUTE_TYPE),
    "picker": (POOL_TYPE,),
}
_NO_NAMES_YET = (ENDPOINT_TYPE,)
_WHOLE = (CLUSTER_TYPE, LISTENER_TYPE, POOL_TYPE)
"""Types of which a response of the state of the world contains all resources."""


@dataclass
class AdsPeer:
    """A correct client: it subscribes to all types of its kind and acknowledges at once.

    Args:
        address: ``ip:port`` of the ADS port.
        node: Node id.
        kind: Whether it is served what an Envoy or what a picker gets.
        variant: Variant of the protocol.
    """

    address: str
    node: str
    kind: Kind = "envoy"
    variant: Variant = "delta"
    held: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Type URL -> name -> serialized resource, as of the last response."""
    received: Counter[str] = field(default_factory=Counter)
    """Type URL -> number of responses."""
    connections: int = 0
    _watches: list[tuple[Callable[[AdsPeer], bool], asyncio.Future[float]]] = field(
        default_factory=list
    )

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=self.node)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def once(self, look: Callable[[AdsPeer], bool]) -> asyncio.Future[float]:
        """Return when ``look`` is true of the peer for the first time, monotonic seconds."""
        found: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._watches.append((look, found))
        self._look()
        return found

    def pool(self, name: str) -> Any:
        """Return a pool as the peer holds it; ``None`` if it holds none of that name."""
        data = self.held.get(POOL_TYPE, {}).get(name)
        return None if data is None else pool_pb2.Pool.FromString(data)

    def drains(self, pool: str, endpoint: str) -> bool:
        """Return whether a picker would not pick this replica any more."""
        found = self.pool(pool)
        return found is not None and all(e.draining for e in found.endpoints if e.id == endpoint)

    def spares(self, pool: str, endpoint: str) -> bool:
        """Return whether a picker has another usable replica in each variant of this one."""
        found = self.pool(pool).endpoints
        usable = [e for e in found if not e.draining and not e.told]
        variants = {e.variant for e in usable if e.id == endpoint}
        return variants <= {e.variant for e in usable if e.id != endpoint}

    def weighs(self, pool: str, weight: int) -> bool:
        """Return whether a variant of the pool has this weight."""
        if self.kind == "picker":
            found = self.pool(pool)
            return found is not None and weight in [v.weight for v in found.variants]
        layers = [
            rtds_pb2.Runtime.FromString(data).layer.fields
            for name, data in self.held.get(RUNTIME_TYPE, {}).items()
            if name in WEIGHT_LAYERS
        ]
        return any(
            f".{pool}/" in key and value.string_value == str(weight)
            for layer in layers
            for key, value in layer.items()
        )

    # --- what a kind of peer does differently ---------------------------------------------------

    async def react(self, talk: Talk, response: Any) -> None:
        """Process a response; the default takes and acknowledges it."""
        await self.take(talk, response)

    async def life(self, talk: Talk) -> None:
        """Talk over one stream until it ends."""
        while (response := await talk.call.read()) is not grpc.aio.EOF:
            self.received[response.type_url] += 1
            await self.react(talk, response)

    async def take(self, talk: Talk, response: Any) -> None:
        """Hold what a response brings, and acknowledge it."""
        held = self.held.setdefault(response.type_url, {})
        if self.variant == "delta":
            for name in response.removed_resources:
                held.pop(name, None)
            held.update({each.name: each.resource.value for each in response.resources})
        else:
            if response.type_url in _WHOLE:
                held.clear()
            held.update({name_of(each): each.value for each in response.resources})
        await talk.acknowledge(response)
        if response.type_url == CLUSTER_TYPE:
            await talk.name(ENDPOINT_TYPE, endpoints_of(held))
        self._look()

    async def _run(self) -> None:
        while True:
            async with grpc.aio.insecure_channel(
                self.address, options=[("grpc.use_local_subchannel_pool", 1)]
            ) as channel:
                stub: Any = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel)
                open_ = (
                    stub.DeltaAggregatedResources
                    if self.variant == "delta"
                    else stub.StreamAggregatedResources
                )
                talk = Talk(self, open_())
                try:
                    await talk.begin()
                    self.connections += 1
                    await self.life(talk)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    self.held.clear()
                finally:
                    talk.end()
            await asyncio.sleep(RECONNECT_S)

    def _look(self) -> None:
        now = time.monotonic()
        for look, found in list(self._watches):
            if look(self):
                self._watches.remove((look, found))
                if not found.done():
                    found.set_result(now)


class Talk:
    """One stream of a peer."""

    def __init__(self, peer: AdsPeer, call: Any) -> None:
        self.peer, self.call = peer, call
        self.tasks: set[asyncio.Task[None]] = set()
        self._last: dict[str, tuple[str, str]] = {}
        self._names: dict[str, Names] = dict(_NAMED)

    async def begin(self) -> None:
        """Name the node and subscribe."""
        kind = self.peer.kind
        cluster = PICKER_NODE_CLUSTER if kind == "picker" else "test"
        node: dict[str, Any] | None = {"id": self.peer.node, "cluster": cluster}
        for url in _FIRST[kind]:
            if url in _NO_NAMES_YET:
                continue
            await self._write(url, self._names.get(url, ()), node=node)
            node = None

    async def acknowledge(self, response: Any) -> None:
        """Acknowledge a response."""
        url = response.type_url
        version = "" if self.peer.variant == "delta" else response.version_info
        self._last[url] = (version, response.nonce)
        await self._write(url, ())

    async def refuse(self, response: Any, why: str) -> None:
        """Refuse a response."""
        url = response.type_url
        version, _ = self._last.get(url, ("", ""))
        self._last[url] = (version, response.nonce)
        await self._write(url, (), error=why)

    async def name(self, url: str, names: Names) -> None:
        """Subscribe to exactly these names of a type."""
        known = self._names.get(url, ())
        if names == known:
            return
        self._names[url] = names
        if self.peer.variant == "delta":
            gone = sorted(set(known) - set(names))
            await self._write(url, sorted(set(names) - set(known)), gone=gone, answers=False)
        else:
            await self._write(url, names)

    def later(self, delay_s: float, answer: Any) -> None:
        """Await ``answer`` after a delay, unless the stream has ended."""

        async def wait() -> None:
            await asyncio.sleep(delay_s)
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await answer()

        task = asyncio.create_task(wait())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def end(self) -> None:
        """End the stream."""
        self.call.cancel()
        for task in self.tasks:
            task.cancel()

    async def _write(
        self,
        url: str,
        names: Any,
        *,
        node: Any = None,
        gone: Any = (),
        error: str = "",
        answers: bool = True,
    ) -> None:
        version, nonce = self._last.get(url, ("", ""))
        more = {"node": node} if node else {}
        if error:
            more["error_detail"] = {"code": 3, "message": error}
        request: Any
        if self.peer.variant == "delta":
            request = discovery_pb2.DeltaDiscoveryRequest(
                type_url=url,
                resource_names_subscribe=names,
                resource_names_unsubscribe=gone,
                response_nonce=nonce if answers else "",
                **more,
            )
        else:
            request = discovery_pb2.DiscoveryRequest(
                type_url=url,
                resource_names=self._names.get(url, ()),
                version_info=version,
                response_nonce=nonce,
                **more,
            )
        await self.call.write(request)


@dataclass
class Deaf(AdsPeer):
    """Subscribes and reads nothing."""

    async def life(self, talk: Talk) -> None:
        await talk.call.wait_for_connection()
        while not talk.call.done():  # noqa: ASYNC110 - reading would be the event
            await asyncio.sleep(0.1)


@dataclass
class Mute(AdsPeer):
    """Reads everything and answers nothing."""

    async def react(self, talk: Talk, response: Any) -> None:
        """Answer nothing."""


@dataclass
class Refusing(AdsPeer):
    """Refuses every response, with ``first`` only those after the first of each type."""

    first: bool = False

    async def react(self, talk: Talk, response: Any) -> None:
        if self.first and not self.held.get(response.type_url):
            await self.take(talk, response)
        else:
            await talk.refuse(response, "I refuse everything")


@dataclass
class Slow(AdsPeer):
    """Acknowledges each response after a delay of its own."""

    rng: random.Random = field(kw_only=True)
    least_s: float = 0.5
    most_s: float = 3.0

    async def react(self, talk: Talk, response: Any) -> None:
        delay_s = self.rng.uniform(self.least_s, self.most_s)
        talk.later(delay_s, lambda: self.take(talk, response))


@dataclass
class Flapping(AdsPeer):
    """Ends its stream at random moments, answered or not, and comes back."""

    rng: random.Random = field(kw_only=True)
    most_s: float = 1.5

    async def life(self, talk: Talk) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.rng.uniform(0.0, self.most_s)):
                await super().life(talk)


def name_of(resource: Any) -> str:
    """Return the name of a resource in an ``Any``; of a type without a reader it is the type."""
    if resource.type_url == POOL_TYPE:
        return str(pool_pb2.Pool.FromString(resource.value).name)
    if resource.type_url == CLUSTER_TYPE:
        return str(cluster_pb2.Cluster.FromString(resource.value).name)
    if resource.type_url == RUNTIME_TYPE:
        return str(rtds_pb2.Runtime.FromString(resource.value).name)
    return str(resource.type_url)


def endpoints_of(clusters: dict[str, bytes]) -> Names:
    """Return the names of the endpoints that clusters ask for."""
    found = []
    for data in clusters.values():
        cluster = cluster_pb2.Cluster.FromString(data)
        if cluster.HasField("eds_cluster_config"):
            found.append(cluster.eds_cluster_config.service_name or cluster.name)
    return tuple(sorted(found))
