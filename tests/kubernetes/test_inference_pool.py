"""An InferencePool of a real API server is picked up, edited and deleted."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from kubernetes.pooled import Pooled, define_pools

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kubernetes.cluster import Cluster

pytestmark = pytest.mark.timeout(600)
_numbers = itertools.count(1)


@pytest.fixture
async def pooled(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Pooled]:
    """A namespace of its own; the resource is installed."""
    await define_pools(cluster)
    made = Pooled(cluster, f"pooled-{next(_numbers)}", tmp_path)
    yield made
    await made.stop()
    if not cluster.api.running:
        await cluster.restart()


async def test_a_pool_is_picked_up_edited_and_deleted(pooled: Pooled) -> None:
    """With the documented rights alone; what an edit takes out is told to be meant."""
    await pooled.create(2)
    await pooled.deploy("triton", 1)
    pooled.start()
    absent = "has no InferencePool 'llm'"
    await pooled.until(lambda: any(absent in each for each in pooled.troubles))
    await pooled.cluster.apply(pooled.pool())
    await pooled.serves(2)
    assert pooled.troubles[-1] == ""
    await pooled.cluster.apply(pooled.pool(8000, 8001))
    await pooled.serves(2, 8000, 8001)
    assert pooled.newest.final
    await pooled.cluster.scale(pooled.namespace, "vllm", 3)
    await pooled.serves(3, 8000, 8001)
    assert not pooled.newest.final
    await pooled.cluster.apply(pooled.pool(9000, app="triton"))
    await pooled.serves(1, 9000, app="triton")
    assert any(each.final for each in pooled.observations[-3:])
    await pooled.cluster.delete(pooled.pool())
    await pooled.until(lambda: not pooled.newest.endpoints)
    assert pooled.newest.final
    await pooled.until(lambda: "has no InferencePool" in pooled.troubles[-1])


async def test_a_pod_that_is_not_ready_does_not_serve(pooled: Pooled) -> None:
    """And does again once it is; one that is deleted terminates first."""
    await pooled.create(2)
    await pooled.cluster.apply(pooled.pool())
    pooled.start()
    await pooled.serves(2)
    name = pooled.newest.endpoints[0].identity
    pooled.cluster.kubelet.unready.add(name.removesuffix("-8000"))
    await pooled.until(lambda: not pooled.newest.endpoints[0].serving)
    pooled.cluster.kubelet.unready.discard(name.removesuffix("-8000"))
    await pooled.serves(2)
    seen = len(pooled.observations)
    await pooled.cluster.scale(pooled.namespace, "vllm", 1)
    await pooled.serves(1)
    later = [each for seen in pooled.observations[seen:] for each in seen.endpoints]
    assert any(each.terminating for each in later)


async def test_rights_that_are_missing_and_a_server_that_restarts(pooled: Pooled) -> None:
    """Each missing right in one sentence; an edit while the server was away is seen."""
    await pooled.create(1, rights=False)
    await pooled.cluster.apply(pooled.pool())
    pooled.start()
    await pooled.until(lambda: pooled.troubles)
    assert (
        f"forbids to system:serviceaccount:{pooled.namespace}:tidegate-picker to list "
        "inferencepools.inference.networking.k8s.io"
    ) in pooled.troubles[0]
    await pooled.grant()
    await pooled.serves(1)
    pooled.cluster.api.stop()
    await pooled.until(lambda: "cannot be asked" in pooled.troubles[-1])
    await pooled.cluster.restart()
    await pooled.cluster.apply(pooled.pool(9000))
    await pooled.serves(1, 9000)
    await pooled.until(lambda: pooled.troubles[-1] == "")
