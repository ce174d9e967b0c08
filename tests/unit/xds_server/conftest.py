"""Fixtures of the control server's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from support.built_listeners import listeners_are_built_once
from support.controls import TEXT, World
from xds_server.fleet.store import RevisionStore

__all__ = ["listeners_are_built_once"]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Return a control that runs the usual fleet as revision 1."""
    with closing(RevisionStore(None)) as store:
        made = World(store)
        await made.control.start(TEXT, "fleet.yaml")
        yield made
        await made.control.stop()
