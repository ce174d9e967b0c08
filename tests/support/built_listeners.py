"""Fixtures of all of the control server's tests."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from xds_server.fleet.model.listener import ListenerSpec
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
