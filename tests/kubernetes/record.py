"""Recorder of a real API server's answers about EndpointSlices.

``PYTHONPATH=tests:. python -m kubernetes.record FOLDER`` writes the bytes of lists, watches and
refusals that ``tests/contract/test_kubernetes.py`` reads.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from kubernetes.cluster import ADMIN, Cluster
from kubernetes.watched import Watched

NAMESPACE = "infer"
PATH = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
WATCH_S = "2"


class Recorder:
    """Asks as the source does, and keeps what comes."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._about: dict[str, dict[str, Any]] = {}

    async def get(self, name: str, token: str = ADMIN, **query: str) -> bytes:
        """Record the answer to one request as a file of this name."""
        async with self._cluster.session().get(
            self._cluster.url + PATH, params=query, headers={"Authorization": f"Bearer {token}"}
        ) as answer:
            body = await answer.read()
            self._about[name] = {
                "query": query,
                "status": answer.status,
                "type": answer.headers.get("Content-Type", ""),
            }
        (self._folder / f"{name}.json").write_bytes(body)
        return body

    def end(self) -> None:
        """Write what was asked."""
        text = json.dumps(self._about, indent=1, sort_keys=True) + "\n"
        (self._folder / "answers.json").write_text(text)


async def record(folder: Path) -> None:
    """Record everything."""
    with tempfile.TemporaryDirectory() as state:
        async with Cluster(Path(state)) as cluster:
            recorder = Recorder(cluster, folder)
            await _answers(cluster, recorder, Path(state))
            recorder.end()


async def _answers(cluster: Cluster, recorder: Recorder, state: Path) -> None:
    watched = Watched(cluster, NAMESPACE, state)
    await watched.create(2, rights=False)
    denied = await watched.token()
    await recorder.get("forbidden-list", denied)
    await recorder.get("forbidden-watch", denied, watch="1", resourceVersion="1")
    await recorder.get("unauthorized", "none")
    await watched.grant()
    watched.start()
    await watched.settles(2)
    for number in (1, 2):
        await watched.apply(_outside(number))
    listed = json.loads(await recorder.get("list", labelSelector="app=triton"))
    version = listed["metadata"]["resourceVersion"]
    first = json.loads(await recorder.get("page-1", labelSelector="app=triton", limit="1"))
    more = first["metadata"]["continue"]
    await recorder.get("page-2", labelSelector="app=triton", limit="1", **{"continue": more})
    watch = {"labelSelector": "app=triton", "watch": "1", "allowWatchBookmarks": "true"}
    following = asyncio.create_task(
        recorder.get("watch", **watch, resourceVersion=version, timeoutSeconds="12")
    )
    await asyncio.sleep(0.5)
    for replicas in (3, 1):
        await cluster.scale(NAMESPACE, "triton", replicas)
        await watched.settles(replicas + 2)
    await cluster.delete(_outside(1))
    await following
    await recorder.get(
        "bookmark", **watch, resourceVersion=version, timeoutSeconds=WATCH_S,
        sendInitialEvents="true", resourceVersionMatch="NotOlderThan",
    )  # fmt: skip
    await recorder.get("too-new", **watch, resourceVersion="999999999", timeoutSeconds=WATCH_S)
    await recorder.get("bad-version", **watch, resourceVersion="x", timeoutSeconds=WATCH_S)
    await cluster.compact()
    await cluster.restart()
    await recorder.get("too-old-watch", **watch, resourceVersion=version, timeoutSeconds=WATCH_S)
    await recorder.get("too-old-list", labelSelector="app=triton", limit="1", **{"continue": more})
    await watched.stop()


def _outside(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"outside-{number}",
            "namespace": NAMESPACE,
            "labels": {"kubernetes.io/service-name": "outside", "app": "triton"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8000}, {"name": "grpc", "port": 8001}],
        "endpoints": [{"addresses": [f"192.0.2.{number}"]}],
    }


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(record(target))
