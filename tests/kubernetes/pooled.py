"""A namespace with an InferencePool and pods, and a source that follows them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import yaml

from kubernetes.binaries import module
from kubernetes.cluster import NODE
from xds_server.applications.discovery.kubernetes.pool_source import InferencePoolSource
from xds_server.applications.discovery.values import Observation
from xds_server.fleet.model.kubernetes import InferencePoolSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kubernetes.cluster import Cluster

EXTENSION = ("sigs.k8s.io/gateway-api-inference-extension", "v1.5.0")
ACCOUNT = "tidegate-picker"
WAIT_S = 120.0
RULES = [
    {
        "apiGroups": ["inference.networking.k8s.io"],
        "resources": ["inferencepools"],
        "verbs": ["list", "watch"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
]
"""The rights that ``docs/reference/endpoint-picker.md`` names."""


async def define_pools(cluster: Cluster) -> None:
    """Install the resource of InferencePools."""
    folder = module(*EXTENSION) / "config/crd/bases"
    (path,) = folder.glob("inference.networking.k8s.io_inferencepools.yaml")
    await cluster.define(yaml.safe_load(path.read_text()))


class Pooled:
    """One namespace with a Deployment ``vllm``, and the InferencePool ``llm`` once it is made.

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

    async def create(self, replicas: int, *, rights: bool = True) -> None:
        """Make the namespace, its account and Deployment, and write a token."""
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        await self.cluster.apply(namespace)
        await self.apply("v1", "ServiceAccount", ACCOUNT)
        if rights:
            await self.grant()
        await self.deploy("vllm", replicas)
        self.token_file.write_text(
            await self.cluster.token(self.namespace, ACCOUNT),
        )

    async def grant(self) -> None:
        """Give the account its rights."""
        group = "rbac.authorization.k8s.io"
        await self.apply(f"{group}/v1", "Role", ACCOUNT, rules=RULES)
        subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": self.namespace}
        role = {"apiGroup": group, "kind": "Role", "name": ACCOUNT}
        await self.apply(f"{group}/v1", "RoleBinding", ACCOUNT, roleRef=role, subjects=[subject])

    async def deploy(self, name: str, replicas: int) -> None:
        """Make a Deployment whose pods have the label ``app`` with its name."""
        labels = {"app": name}
        pod = {
            "nodeName": NODE,  # there is no scheduler
            "containers": [{"name": "engine", "image": "none"}],
        }
        spec = {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        }
        await self.apply("apps/v1", "Deployment", name, spec=spec)

    def pool(self, *ports: int, app: str = "vllm") -> dict[str, Any]:
        """Return the InferencePool ``llm``, as an operator writes it."""
        return {
            "apiVersion": "inference.networking.k8s.io/v1",
            "kind": "InferencePool",
            "metadata": {"name": "llm", "namespace": self.namespace},
            "spec": {
                "selector": {"matchLabels": {"app": app}},
                "targetPorts": [{"number": port} for port in ports or (8000,)],
                "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
            },
        }

    async def apply(self, version: str, kind: str, name: str, **fields: Any) -> None:
        """Apply an object to this namespace."""
        metadata = {"name": name, "namespace": self.namespace}
        await self.cluster.apply(
            {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}
        )

    def start(self) -> None:
        """Follow the InferencePool."""
        api = {
            "url": self.cluster.url,
            "token_file": str(self.token_file),
            "ca_file": str(self.cluster.ca),
        }
        spec = {"namespace": self.namespace, "name": "llm", "api": api}
        source = InferencePoolSource(InferencePoolSpec.model_validate(spec))
        self._task = asyncio.create_task(source.run(self._found, self._trouble))

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

    async def until(self, true: Callable[[], Any]) -> None:
        """Wait for reports until ``true`` returns true."""
        async with asyncio.timeout(WAIT_S):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    async def serves(self, replicas: int, *ports: int, app: str = "vllm") -> None:
        """Wait until so many pods of a Deployment are found at these ports, all ready."""

        def same() -> bool:
            found = self.newest.endpoints
            wanted = {str(port) for port in ports or (8000,)}
            whole = len(found) == replicas * len(wanted)
            return whole and all(
                each.serving
                and not each.terminating
                and each.identity.startswith(f"{app}-")
                and each.identity.rpartition("-")[2] in wanted
                for each in found
            )

        await self.until(same)
