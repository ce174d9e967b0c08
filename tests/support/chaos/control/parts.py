"""What stands in the place of ports, Tritons and logs of a simulated control server."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from support.chaos.control.values import ADS, WAY_S
from xds_server.applications.canary.guards import NO_ALERTS
from xds_server.applications.loading.parity import ModelDescription
from xds_server.applications.loading.plan import Answered, RepositoryEntry

if TYPE_CHECKING:
    from support.chaos.control.world import World


class Port:
    """As ``AdsPort``."""

    def __init__(self, *_: Any) -> None:
        self._host: Any = asyncio.get_running_loop()
        self._ads: Any = None

    def roles(self, _: Any) -> None:
        """Return nothing: there is no TLS."""

    certificate = roles

    def not_named(self, *_: Any) -> None:
        """Return nothing: all may speak."""

    def open(self, address: str, ads: Any, *_: Any) -> tuple[Port, str]:
        """Return the server."""
        self._ads = ads
        return self, address

    async def start(self) -> None:
        """Serve."""
        handler = self._ads.service(SimpleNamespace(method=ADS))
        host = self._host
        host.port = lambda stream: host.create_task(stream.serve(handler))

    async def stop(self, _: float) -> None:
        """Do not."""
        self._host.port = None
        for each in tuple(self._host.streams):
            each.broken()


class Tritons:
    """As ``TritonCalls``: replicas that load a model in a while, whoever has asked."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def entry(self, replica: Any, _: str) -> RepositoryEntry:
        """Return what the repository has."""
        await asyncio.sleep(WAY_S)
        has = replica.id in self._world.loaded
        return RepositoryEntry(True, frozenset({"1"} if has else ()), has)

    async def check_explicit(self, _: Any) -> None:
        """Do nothing: all take loads."""
        await asyncio.sleep(WAY_S)

    async def free_memory(self, _: Any) -> None:
        """Return nothing."""

    async def change(self, replica: Any, kind: str, _: str) -> None:
        """Load or unload."""
        world = self._world
        act = world.loaded.add if kind == "load" else world.loaded.discard
        world.network.at(world.network.now + 0.4, act, replica.id)
        await asyncio.sleep(0.5)

    async def describe(self, *_: Any) -> ModelDescription:
        """Return what all have."""
        await asyncio.sleep(WAY_S)
        return ModelDescription({}, ("1",), "p", (), False)

    async def answered(self, *_: Any) -> Answered:
        """Return nothing."""
        return Answered()

    async def infer(self, *_: Any) -> None:
        """Answer."""
        await asyncio.sleep(WAY_S)


class Operators:
    """As ``OperatorPorts``."""

    def __init__(self, *_: Any) -> None:
        self.trail = SimpleNamespace(fault="", unwritten=0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().ready = False  # type: ignore[attr-defined]  # the loop is a Host

    def bind(self, made: Any, _: Any) -> str:
        """Note the service."""
        asyncio.get_running_loop().parts = made  # type: ignore[attr-defined]  # as above
        return "admin"

    async def start(self) -> str:
        """Answer."""
        asyncio.get_running_loop().ready = True  # type: ignore[attr-defined]  # as above
        return ""


class Quiet:
    """What asks others, and is told nothing."""

    def __init__(self, *_: Any) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def __call__(self, _: str) -> Any:
        return NO_ALERTS

    async def ask(self, _: Any) -> None:
        """Ask no picker."""

    def known(self, _: str) -> None:
        """Take it."""

    again = known

    async def run(self) -> None:
        """Wait."""
        await asyncio.Event().wait()


class Log:
    """Notes who leads."""

    def info(self, event: str, **more: Any) -> None:
        """Note it."""
        if event == "control_server_leads":
            host: Any = asyncio.get_running_loop()
            host.epoch = host.world.epoch = more["epoch"]
            for each in host.world.hosts.values():
                if (
                    each is not host
                    and each.port is not None
                    and each.alive
                    and each.stopped_until <= host.time()
                ):
                    host.world.errors.append(f"{host.address} leads beside {each.address}")

    def warning(self, *_: Any, **__: Any) -> None:
        """Drop it."""

    error = warning
