"""A cluster for the tests of this folder, which run only where they are asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kubernetes.binaries import PROGRAMS, built
from kubernetes.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ASKED = os.environ.get("TIDEGATE_KUBERNETES") == "1"
collect_ignore_glob = [] if ASKED else ["test_*.py"]
TOOLS = frozenset({"etcdctl", "etcdutl"})
NEEDS = {
    "test_etcd_page": {"etcd", *TOOLS},
    "test_shared_store": {"etcd"},
    "test_parts": set(),
}
"""Programs that files need whose tests run no API server; all others need all but etcd's tools."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what the selected tests need before the first one: that takes minutes."""
    if session.config.option.collectonly:
        return
    files = {item.path for item in session.items}
    ours = [each.stem for each in files if each.is_relative_to(Path(__file__).parent)]
    needed = {name for file in ours for name in NEEDS.get(file, PROGRAMS.keys() - TOOLS)}
    try:
        for name in sorted(needed):
            built(name)
    except RuntimeError as error:
        pytest.exit(str(error), returncode=1)


@pytest.fixture(scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """One cluster for all tests."""
    async with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
