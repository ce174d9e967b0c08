"""A namespace whose pods are replicas of the test's process, and an API server that breaks.

All pods have the machine's own address and a port each, because EndpointSlices refuse loopback; the
Service finds the ports by their name.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from typing import TYPE_CHECKING, Any, Self

import aiohttp

from kubernetes.cluster import NODE, ApiError
from kubernetes.watched import Watched, manifests
from support.churn_replicas import ChurnReplica

if TYPE_CHECKING:
    from pathlib import Path

    from kubernetes.cluster import Cluster
    from tidegate.stack.processes.ports import HeldPorts

EVERY_S = 0.2
LABELS = {"app": "triton"}


def own_address() -> str:
    """Return the machine's address that is not loopback.

    Raises:
        RuntimeError: It has none.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        address = str(probe.getsockname()[0])
    if address.startswith("127."):
        raise RuntimeError("this machine has no address but loopback, which EndpointSlices refuse")
    return address


class PodsDriver:
    """Pods that come and go; see ``support.churn``. An async context manager.

    Args:
        cluster: Where.
        namespace: Its name; a new one.
        folder: Holds the token.
        ports: Free ports.
    """

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, ports: HeldPorts) -> None:
        self.listed: dict[str, ChurnReplica] = {}
        self.tells_ends = True
        self.watched = Watched(cluster, namespace, folder)
        self._cluster = cluster
        self._namespace = namespace
        self._ports = ports
        self._host = own_address()
        self._granted = True
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self.watched.create(0)
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "replicas", "labels": {**LABELS, "tidegate.dev/device": "a100"}},
            "spec": {
                "selector": {"churn": "yes"},
                "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
            },
        }
        await self.watched.apply(service)
        self._tasks.append(asyncio.create_task(self._reconcile()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def settings(self) -> dict[str, Any]:
        """Return fields of the pool."""
        spec = self.watched.spec.model_dump(mode="json", exclude_unset=True)
        return {
            "endpoints_from": [{"kubernetes": {**spec, "ports": {"http": "http", "grpc": None}}}]
        }

    async def make(self, number: int, rng: random.Random) -> ChurnReplica:
        """Return the replica of a new pod."""
        replica = ChurnReplica(f"pod-{number}", f"{self._host}:{self._ports.take()}", rng)
        self._cluster.kubelet.addresses[replica.name] = self._host
        self._cluster.kubelet.serving.add(replica.name)
        return replica

    async def say(self) -> None:
        """Nothing: pods follow ``listed``."""

    def ended(self, replica: ChurnReplica) -> None:
        """Let the pod end."""
        self._cluster.kubelet.serving.discard(replica.name)

    async def _reconcile(self) -> None:
        """Create and delete pods, whenever the API server is there."""
        made: dict[str, ChurnReplica] = {}
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError, ApiError, TimeoutError):
                for replica in list(self.listed.values()):
                    if replica.name not in made:
                        await self._cluster.ask("POST", path, self._pod(replica))
                        made[replica.name] = replica
                for name in made.keys() - self.listed.keys():
                    try:
                        await self._cluster.ask("DELETE", f"{path}/{name}")
                    except ApiError as error:
                        if error.status != 404:
                            raise
                    del made[name]
            await asyncio.sleep(EVERY_S)

    def _pod(self, replica: ChurnReplica) -> dict[str, Any]:
        port = int(replica.address.rpartition(":")[2])
        container = {
            "name": "triton",
            "image": "none",
            "ports": [{"name": "http", "containerPort": port}],
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": replica.name, "labels": {"churn": "yes"}},
            "spec": {"nodeName": NODE, "containers": [container]},
        }

    @property
    def broken(self) -> bool:
        """Whether the API server is away, denies, or a pod is not ready."""
        return bool(self._restarts) or not self._granted or bool(self._cluster.kubelet.unready)

    @property
    def _restarts(self) -> list[asyncio.Task[None]]:
        self._tasks = [self._tasks[0], *(each for each in self._tasks[1:] if not each.done())]
        return self._tasks[1:]

    async def fault(self, rng: random.Random) -> None:
        """Kill the API server, compact its store, deny the rights, or let a pod be not ready."""
        if self._restarts:
            return
        kind = rng.choice(["killed", "compacted", "denied", "unready", "unready", "unready"])
        with contextlib.suppress(aiohttp.ClientError, OSError, ApiError, TimeoutError):
            if kind == "unready":
                self._cluster.kubelet.unready.add(rng.choice(sorted(self.listed)))
            elif kind == "denied":
                (binding,) = manifests("edge.yaml", "RoleBinding")
                binding["metadata"]["namespace"] = self._namespace
                self._granted = False
                await self._cluster.delete(binding)
            else:
                again = self._restart(rng.choice([0.0, 1.0, 3.0]), compact=kind == "compacted")
                self._tasks.append(asyncio.create_task(again))

    async def _restart(self, after_s: float, *, compact: bool) -> None:
        if compact:
            self._cluster.api.stop()
            await self._cluster.compact()
        await self._cluster.restart(after_s)
        # They may wait for minutes for events that they lost; started anew they do not.
        self._cluster.controllers.stop()
        self._cluster.controllers.start()

    async def mend(self) -> None:
        """Let the API server be there, the rights be given and all pods be ready."""
        await asyncio.gather(*self._restarts)
        self._cluster.kubelet.unready.clear()
        if not self._granted:
            await self.watched.grant()
            self._granted = True
