"""Fixtures of all of the control server's tests."""

from __future__ import annotations

import functools

import pytest

from xds_server.fleet.model.listener import ListenerSpec
from xds_server.resources.listener import all_listeners
from xds_server.snapshots import build


@pytest.fixture(autouse=True)
def listeners_are_built_once(monkeypatch):
    """Build each listener once for all tests: it is most of the work of a first snapshot."""
    monkeypatch.setattr(
        build, "all_listeners", lambda spec, slots: _listeners(spec.model_dump_json(), slots)
    )


@functools.cache
def _listeners(spec: str, slots: int) -> dict[str, bytes]:
    return all_listeners(ListenerSpec.model_validate_json(spec), slots)
