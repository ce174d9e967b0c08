"""A cluster for the tests of this folder, which run only where they are asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kubernetes.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ASKED = os.environ.get("TIDEGATE_KUBERNETES") == "1"
collect_ignore_glob = [] if ASKED else ["test_*.py"]


@pytest.fixture(scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """One cluster for all tests."""
    async with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
