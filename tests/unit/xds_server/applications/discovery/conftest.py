"""A membership that runs, and its store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from support.findings import Finding
from xds_server.fleet.store import RevisionStore


@pytest.fixture
def store() -> Iterator[RevisionStore]:
    """Return a store in memory."""
    with closing(RevisionStore(None)) as made:
        yield made


@pytest.fixture
async def finding(store: RevisionStore):
    """Return a membership that runs, with nothing found yet."""
    made = Finding(store)
    await made.start()
    yield made
    await made.stop()
