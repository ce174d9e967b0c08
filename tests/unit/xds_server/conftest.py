"""Fixtures of the control server's tests."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import pytest

from support.controls import TEXT, World
from xds_server.fleet.model.listener import ListenerSpec
from xds_server.fleet.store import RevisionStore
from xds_server.resources.listener import listener
from xds_server.snapshots import memo


@pytest.fixture(autouse=True)
def listeners_are_built_once(monkeypatch):
    """Build each listener once for all tests: it is most of the work of a first snapshot."""
    monkeypatch.setattr(
        memo, "listener", lambda spec, n, **more: _listener(spec.model_dump_json(), n, **more)
    )


@functools.cache
def _listener(spec: str, slots: int, **more: Any) -> bytes:
    return listener(ListenerSpec.model_validate_json(spec), slots, **more)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Return a control that runs the usual fleet as revision 1."""
    with closing(RevisionStore(None)) as store:
        made = World(store)
        await made.control.start(TEXT, "fleet.yaml")
        yield made
        await made.control.stop()
