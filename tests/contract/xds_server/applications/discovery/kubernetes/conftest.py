"""A source and what it reports."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

import pytest

from support.endpoint_slices import SPEC
from support.fake_api_server import FakeApiServer
from xds_server.applications.discovery.kubernetes.source import KubernetesSource
from xds_server.fleet.model.kubernetes import KubernetesSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from xds_server.applications.discovery.values import Observation


class Following:
    """A running source and its reports."""

    def __init__(self, server: FakeApiServer, **api: str) -> None:
        spec = KubernetesSpec.model_validate(
            {**SPEC.model_dump(), "api": {"url": server.url, **api}}
        )
        self.observations: list[Observation] = []
        self.troubles: list[str] = []
        self.source = KubernetesSource(spec, jitter=random.Random(7).random, settle_s=0.0)
        self._told = asyncio.Event()
        self.task = asyncio.create_task(self.source.run(self._found, self._trouble))

    def _found(self, observation: Observation) -> None:
        self.observations.append(observation)
        self._told.set()

    def _trouble(self, text: str) -> None:
        self.troubles.append(text)
        self._told.set()

    @property
    def names(self) -> list[str]:
        """Identities of the newest observation."""
        return [found.identity for found in self.observations[-1].endpoints]

    async def until(self, true: Callable[[], Any]) -> None:
        """Wait for reports until ``true`` returns true."""
        async with asyncio.timeout(20):
            while not true():
                self._told.clear()
                await self._told.wait()

    async def shows(self, *names: str) -> None:
        """Wait until exactly these pods are reported."""
        await self.until(lambda: self.observations and self.names == sorted(names))

    async def end(self) -> None:
        """Cancel the source; an error of its own is raised here."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    """A server without slices."""
    async with FakeApiServer() as running:
        yield running


@pytest.fixture
async def follow(server: FakeApiServer) -> AsyncIterator[Callable[..., Following]]:
    """Start a source of the server."""
    started: list[Following] = []

    def start(**api: str) -> Following:
        started.append(Following(server, **api))
        return started[-1]

    yield start
    for each in started:
        await each.end()
