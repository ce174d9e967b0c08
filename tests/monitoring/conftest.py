"""Tests with a real Prometheus, which run only where they are asked for (`make test-rules`)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import aiohttp
import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ASKED = os.environ.get("TIDEGATE_RULES") == "1"
collect_ignore_glob = [] if ASKED else ["test_*.py"]


@pytest.fixture(scope="session")
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """Return one HTTP client for the session."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session
