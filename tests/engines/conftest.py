"""Engines for the tests of this folder, which run only where they are asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engines.lab import Lab, installed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ASKED = os.environ.get("TIDEGATE_ENGINES") == "1"
collect_ignore_glob = [] if ASKED else ["test_*.py"]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install vLLM before the first test: it takes minutes, which none of them has."""
    folder = Path(__file__).parent
    ours = any(item.path.is_relative_to(folder) for item in session.items)
    if ours and not session.config.option.collectonly:
        installed()


@pytest.fixture(scope="session")
async def lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    """Two engines for all tests."""
    async with Lab(tmp_path_factory.mktemp("engines")) as running:
        yield running
