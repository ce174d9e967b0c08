"""A namespace with a Deployment, and a source that follows its Service as the control server does.

The source has the rights of ``deploy/kubernetes/edge.yaml`` and no others.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from kubernetes.chart import MANIFESTS, objects
from kubernetes.cluster import NODE
from xds_server.applications.discovery.kubernetes.slices import name_of, observe, reduce
from xds_server.applications.discovery.kubernetes.source import KubernetesSource
from xds_server.applications.discovery.values import Observation
from xds_server.fleet.model.kubernetes import KubernetesSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kubernetes.cluster import Cluster

ACCOUNT = "tidegate-control"
WAIT_S = 120.0
"""The controllers come back after a restart of the API server in their own time."""


def manifests(name: str, *kinds: str) -> list[dict[str, Any]]:
    """Return a file's objects, those of these kinds if any are given."""
    found = objects((MANIFESTS / name).read_text())
    return [each for each in found if not kinds or each["kind"] in kinds]


def triton(replicas: int) -> list[dict[str, Any]]:
    """Return the example's Service, and its pods as a Deployment: each has a new name."""
    service, made = manifests("triton.yaml", "Service", "StatefulSet")
    service["metadata"]["name"] = made["metadata"]["name"] = "triton"
    template = made["spec"]["template"]
    template["spec"]["nodeName"] = NODE  # there is no scheduler
    template["spec"]["volumes"].append({"name": "models", "emptyDir": {}})
    selector = made["spec"]["selector"]
    spec = {"replicas": replicas, "selector": selector, "template": template}
    return [service, {**made, "kind": "Deployment", "spec": spec}]


class Watched:
    """One namespace.

    Args:
        cluster: Where.
        namespace: Its name; a new one.
        folder: Holds the token.
    """

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.token_file = folder / f"{namespace}.token"
        self.observations: list[Observation] = []
        self.troubles: list[str] = []
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.spec = KubernetesSpec.model_validate(
            {
                "namespace": namespace,
                "selector": {"app": "triton"},
                "labels": {"variant": "tidegate.dev/variant", "device": "tidegate.dev/device"},
                "api": {
                    "url": cluster.url,
                    "token_file": str(self.token_file),
                    "ca_file": str(cluster.ca),
                },
            }
        )

    async def create(self, replicas: int, *, rights: bool = True) -> None:
        """Make the namespace, its Role, Deployment and Service, and write a token."""
        kind = {"apiVersion": "v1", "kind": "Namespace"}
        await self.cluster.apply({**kind, "metadata": {"name": self.namespace}})
        await self.apply(*manifests("edge.yaml", "ServiceAccount"))
        if rights:
            await self.grant()
        await self.apply(*triton(replicas))
        self.token_file.write_text(await self.token())

    async def grant(self) -> None:
        """Give the account its rights."""
        await self.apply(*manifests("edge.yaml", "Role", "RoleBinding"))

    async def token(self, secret: str | None = None) -> str:
        """Return a new token of the account."""
        return await self.cluster.token(self.namespace, ACCOUNT, secret)

    async def apply(self, *made: dict[str, Any]) -> None:
        """Apply objects of the example to this namespace."""
        for each in made:
            each["metadata"]["namespace"] = self.namespace
            for subject in each.get("subjects", ()):
                subject["namespace"] = self.namespace
            await self.cluster.apply(each)

    def start(self) -> None:
        """Follow the Service."""
        self._task = asyncio.create_task(
            KubernetesSource(self.spec).run(self._found, self._trouble)
        )

    async def stop(self) -> None:
        """Follow no longer."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _found(self, observation: Observation) -> None:
        self.observations.append(observation)
        self._changed.set()

    def _trouble(self, text: str) -> None:
        self.troubles.append(text)
        self._changed.set()

    @property
    def newest(self) -> Observation:
        """What was found last; nothing before the first report."""
        return self.observations[-1] if self.observations else Observation(())

    async def truth(self) -> Observation | None:
        """Return what the API server says now."""
        found = await self.cluster.slices(self.namespace, self.spec.label_selector)
        kept = {name_of(each): reduced for each in found if (reduced := reduce(each, self.spec))}
        return observe(kept, self.spec).observation

    async def until(self, true: Callable[[], Any]) -> None:
        """Wait for reports until ``true`` returns true."""
        async with asyncio.timeout(WAIT_S):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    async def settles(self, replicas: int) -> None:
        """Wait until so many replicas serve, for the API server and for the source alike."""
        truth: Observation | None = None
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    truth = await self.truth()
                    if self.observations and truth == self.newest:
                        serving = [each for each in truth.endpoints if each.serving]
                        if len(serving) == len(truth.endpoints) == replicas:
                            return
                    await asyncio.sleep(0.1)
        except TimeoutError:
            self.cluster.controllers.check()
            raise AssertionError(
                f"not {replicas} replicas: server {truth}, source {self.newest}, {self.troubles}"
            ) from None
