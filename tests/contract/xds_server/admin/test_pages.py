"""The HTTP pages of the control server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry

from xds_server.admin import pages as module
from xds_server.admin.pages import SafeToStop, pages
from xds_server.fleet.change import UnknownName

PAGE = "/safe-to-stop"


class FakeStopping:
    """Knows r1, which is safe to stop once it was looked at some times."""

    def __init__(self) -> None:
        self.looks = 0
        self.busy = 0

    def ids(self, wanted: str) -> frozenset[str]:
        """Return the replica."""
        if wanted != "r1":
            raise UnknownName("endpoint", wanted, ["r1"])
        return frozenset({"r1"})

    def state(self, _: frozenset[str]) -> Any:
        """Return whether it is safe to stop."""
        self.looks += 1
        left = self.looks <= self.busy
        return SimpleNamespace(safe=not left, waits_for=("picker p1: 1 request in flight",))


@pytest.fixture
def stopping() -> FakeStopping:
    """Return what pages ask."""
    return FakeStopping()


@pytest.fixture
async def client(
    stopping: FakeStopping, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    """Serve the pages; a wait takes no time."""
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    app = pages(CollectorRegistry(), stopping)  # type: ignore[arg-type]  # enough of it
    async with TestClient(TestServer(app)) as served:
        yield served


@pytest.mark.parametrize(
    ("query", "busy", "status", "text"),
    [
        ("endpoint=r1", 0, 200, "safe to stop: r1\n"),
        ("endpoint=r1&timeout=60", 3, 200, "safe to stop: r1\n"),
        ("endpoint=r1&timeout=0", 1, 503, "not safe to stop:\npicker p1: 1 request in flight\n"),
        ("endpoint=r2", 0, 404, "no endpoint 'r2'"),
        ("", 0, 400, "write /safe-to-stop?endpoint=ID"),
        ("endpoint=r1&timeout=soon", 0, 400, "write "),
        ("endpoint=r1&timeout=nan", 0, 400, "write "),
        ("endpoint=r1&timeout=-1", 0, 400, "write "),
        ("endpoint=r1&timeout=3601", 0, 400, "write "),
        (f"endpoint={'r' * 513}", 0, 400, "write "),
    ],
)
async def test_hooks_are_answered(
    client: TestClient[web.Request, web.Application],
    stopping: FakeStopping,
    query: str,
    busy: int,
    status: int,
    text: str,
) -> None:
    """Only 200 means that the replica may be stopped."""
    stopping.busy = busy
    async with client.get(f"{PAGE}?{query}") as answer:
        assert (answer.status, (await answer.text())[: len(text)]) == (status, text)


async def test_waits_are_bounded(stopping: FakeStopping, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the bound a call is answered with what is known now."""
    monkeypatch.setattr(module, "MAX_WAITS", 0)
    stopping.busy = 5
    app = web.Application()
    app.router.add_get(PAGE, SafeToStop(stopping).answer)  # type: ignore[arg-type]  # enough of it
    async with TestClient(TestServer(app)) as served, served.get(f"{PAGE}?endpoint=r1") as answer:
        assert (answer.status, stopping.looks) == (503, 1)


async def test_the_other_pages_are_as_before(
    client: TestClient[web.Request, web.Application],
) -> None:
    """Metrics and health."""
    for path in ("/metrics", "/healthz"):
        async with client.get(path) as answer:
            assert answer.status == 200
