"""Engines for the tests of this folder, which run only where they are asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from engines.lab import Lab

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ASKED = os.environ.get("TIDEGATE_ENGINES") == "1"
collect_ignore_glob = [] if ASKED else ["test_*.py"]


@pytest.fixture(scope="session")
async def lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    """Two engines for all tests."""
    async with Lab(tmp_path_factory.mktemp("engines")) as running:
        yield running
