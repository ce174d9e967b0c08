"""A real API server with its store and controllers, and a kubelet that only says so.

Rules:

1. etcd, API server and controller-manager listen on loopback, on ports of their own that they keep
   when they are started again. They end with this process.
2. No containers run: ``Kubelet`` takes each pod to its node, gives it an address and says that it
   is ready, until it is deleted. All else is done by the real controllers.
3. Requests of tests are an administrator's, by a static token.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml

from kubernetes.binaries import built
from tidegate.stack.processes import guard
from tidegate.stack.processes.ports import HeldPorts

ADMIN = "administrator-of-the-tests"
START_S = 120.0
NODE = "node-1"
ZONE = "zone-a"
CONTROLLERS = (
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "endpointslice-controller",
    "namespace-controller",
    "garbage-collector-controller",
)
_APPLY = {"fieldManager": "tests", "fieldValidation": "Strict", "force": "true"}


class ApiError(Exception):
    """The API server refuses a request of a test."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:500]}")
        self.status = status


class Process:
    """A program that can be killed and started again."""

    def __init__(self, name: str, folder: Path, *arguments: str) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; build it if it is not there."""
        program = str(built(self.name))
        guarded = [sys.executable, "-I", guard.__file__, str(os.getpid()), "0"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*guarded, program, *self._arguments], stdout=log, stderr=log
            )

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it, without a word by default."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def check(self) -> None:
        """Raise ``RuntimeError`` with the end of its log if it has ended."""
        if not self.running:
            raise RuntimeError(f"{self.name} ended:\n{self.log.read_text()[-3000:]}")


class Cluster:
    """etcd, API server, controllers and kubelet; an async context manager.

    Args:
        folder: Holds state and logs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held = HeldPorts()
        client, peer, api, controllers = (self._held.take() for _ in range(4))
        self.etcd_url, self.url = f"http://127.0.0.1:{client}", f"https://127.0.0.1:{api}"
        self.ca = folder / "certificates" / "apiserver.crt"
        self._keys()
        peers = f"http://127.0.0.1:{peer}"
        self.etcd = Process(
            "etcd",
            folder,
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls={self.etcd_url}",
            f"--advertise-client-urls={self.etcd_url}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        self.api = Process(
            "kube-apiserver",
            folder,
            f"--etcd-servers={self.etcd_url}",
            "--etcd-compaction-interval=0",  # tests compact by themselves
            "--bind-address=127.0.0.1",
            f"--secure-port={api}",
            f"--cert-dir={folder / 'certificates'}",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder / 'accounts.pub'}",
            f"--service-account-signing-key-file={folder / 'accounts.key'}",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112",
            "--disable-admission-plugins=ServiceAccount",
            "--enable-priority-and-fairness=false",
        )
        self.controllers = Process(
            "kube-controller-manager",
            folder,
            f"--kubeconfig={folder / 'kubeconfig'}",
            "--bind-address=127.0.0.1",
            f"--secure-port={controllers}",
            f"--cert-dir={folder / 'controllers'}",
            "--leader-elect=false",
            "--use-service-account-credentials=false",
            f"--service-account-private-key-file={folder / 'accounts.key'}",
            f"--controllers={','.join(CONTROLLERS)}",
        )
        self.kubelet = Kubelet(self)
        self._http: aiohttp.ClientSession | None = None
        self._kinds: dict[tuple[str, str], tuple[str, bool]] = {}

    def _keys(self) -> None:
        key, public = self.folder / "accounts.key", self.folder / "accounts.pub"
        made = ["openssl", "genrsa", "-out", str(key), "2048"]
        subprocess.run(made, check=True, capture_output=True)
        made = ["openssl", "rsa", "-in", str(key), "-pubout", "-out", str(public)]
        subprocess.run(made, check=True, capture_output=True)
        (self.folder / "tokens.csv").write_text(f'{ADMIN},admin,admin,"system:masters"\n')
        user = {"name": "admin", "user": {"token": ADMIN}}
        cluster = {"server": self.url, "certificate-authority": str(self.ca)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "admin",
            "contexts": [{"name": "admin", "context": {"cluster": "tests", "user": "admin"}}],
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [user],
        }
        (self.folder / "kubeconfig").write_text(yaml.safe_dump(config))

    async def __aenter__(self) -> Self:
        self.etcd.start()
        self.api.start()
        await self.ready()
        node = {"metadata": {"name": NODE, "labels": {"topology.kubernetes.io/zone": ZONE}}}
        await self.apply({"apiVersion": "v1", "kind": "Node", **node})
        self.controllers.start()
        self.kubelet.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kubelet.stop()
        for process in (self.controllers, self.api, self.etcd):
            process.stop()
        if self._http is not None:
            await self._http.close()
        self._held.close()

    async def ready(self) -> None:
        """Wait until the API server serves.

        Raises:
            RuntimeError: It ended.
            TimeoutError: It does not serve after ``START_S``.
        """
        async with asyncio.timeout(START_S):
            while True:
                self.api.check()
                self.etcd.check()
                with contextlib.suppress(aiohttp.ClientError, OSError, ApiError):
                    if await self.ask("GET", "/readyz", text=True) == "ok":
                        return
                await asyncio.sleep(0.1)

    async def restart(self, seconds: float = 0.0) -> None:
        """Kill the API server and start it again after so many seconds."""
        self.api.stop()
        await asyncio.sleep(seconds)
        self.api.start()
        await self.ready()

    async def compact(self) -> None:
        """Compact the store: no version of before is kept."""
        session = self.session()
        async with session.post(f"{self.etcd_url}/v3/kv/range", json={"key": "AA=="}) as answer:
            revision = (await answer.json())["header"]["revision"]
        asked = {"revision": revision, "physical": True}
        async with session.post(f"{self.etcd_url}/v3/kv/compaction", json=asked) as answer:
            assert answer.status == 200, await answer.text()

    # --- Requests ---------------------------------------------------------------------------------

    async def ask(
        self, verb: str, path: str, body: Any = None, *, text: bool = False, **query: str
    ) -> Any:
        """Send a request; return the answer.

        Raises:
            ApiError: It is refused.
        """
        headers = {"Authorization": f"Bearer {ADMIN}"}
        if verb == "PATCH":
            apply = "fieldManager" in query
            kind = "apply-patch+yaml" if apply else "merge-patch+json"
            headers["Content-Type"] = f"application/{kind}"
        elif body is not None:
            headers["Content-Type"] = "application/json"
        async with self.session().request(
            verb,
            self.url + path,
            data=None if body is None else json.dumps(body),
            headers=headers,
            params=query,
        ) as answer:
            said = await answer.text()
            if answer.status >= 400:
                raise ApiError(answer.status, said)
            return said if text else json.loads(said)

    def session(self) -> aiohttp.ClientSession:
        """Return the session that trusts the API server."""
        if self._http is None or self._http.closed:
            # The API server makes its certificate when it starts first.
            context: Any = ssl.create_default_context(cafile=self.ca) if self.ca.exists() else False
            if context is False:
                raise FileNotFoundError(self.ca)
            connector = aiohttp.TCPConnector(ssl=context)
            timeout = aiohttp.ClientTimeout(total=30)
            self._http = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self._http

    async def apply(self, made: dict[str, Any], **query: str) -> dict[str, Any]:
        """Apply an object strictly: unknown fields are errors. Return what the server holds.

        Raises:
            ApiError: It is refused.
        """
        path = await self._path(made)
        found = await self.ask("PATCH", path, made, **_APPLY, **query)
        assert isinstance(found, dict)
        return found

    async def define(self, made: dict[str, Any]) -> None:
        """Apply a CustomResourceDefinition and wait until it is served."""
        await self.apply(made)
        name, spec = made["metadata"]["name"], made["spec"]
        version = next(each["name"] for each in spec["versions"] if each["served"])
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
        async with asyncio.timeout(START_S):
            while True:
                said = (await self.ask("GET", path)).get("status", {}).get("conditions") or ()
                if any(each["type"] == "Established" and each["status"] == "True" for each in said):
                    with contextlib.suppress(ApiError):
                        await self.ask("GET", f"/apis/{spec['group']}/{version}")
                        return
                await asyncio.sleep(0.1)

    async def delete(self, made: dict[str, Any]) -> None:
        """Delete an object."""
        await self.ask("DELETE", await self._path(made))

    async def _path(self, made: dict[str, Any]) -> str:
        group, kind, metadata = made["apiVersion"], made["kind"], made["metadata"]
        root = f"/api/{group}" if "/" not in group else f"/apis/{group}"
        if (group, kind) not in self._kinds:
            for each in (await self.ask("GET", root))["resources"]:
                if "/" not in each["name"]:
                    self._kinds[group, each["kind"]] = (each["name"], each["namespaced"])
        plural, namespaced = self._kinds[group, kind]
        inside = f"/namespaces/{metadata.get('namespace', 'default')}" if namespaced else ""
        return f"{root}{inside}/{plural}/{metadata['name']}"

    async def token(self, namespace: str, account: str, secret: str | None = None) -> str:
        """Return a new token of a service account, which ends with a Secret if one is named."""
        spec: dict[str, Any] = {"expirationSeconds": 600}
        if secret is not None:
            found = await self.ask("GET", f"/api/v1/namespaces/{namespace}/secrets/{secret}")
            bound = {"apiVersion": "v1", "kind": "Secret", "name": secret}
            spec["boundObjectRef"] = {**bound, "uid": found["metadata"]["uid"]}
        made = await self.ask(
            "POST",
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
        )
        token = made["status"]["token"]
        assert isinstance(token, str)
        return token

    async def slices(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        """Return the slices of Services with these labels."""
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        found = (await self.ask("GET", path, labelSelector=selector))["items"]
        assert isinstance(found, list)
        return found

    async def scale(self, namespace: str, name: str, replicas: int) -> None:
        """Set a Deployment's number of replicas."""
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
        await self.ask("PATCH", path, {"spec": {"replicas": replicas}})


class Kubelet:
    """Says of each pod of the node that it runs, and of deleted ones that they have ended.

    Args:
        cluster: Whose pods.
    """

    POLL_S = 0.1

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._task: asyncio.Task[None] | None = None
        self._addresses = 0
        self.grace_s = 0.3
        """How long a deleted pod serves on."""
        self.unready: set[str] = set()
        """Pods that say they are not ready."""
        self.addresses: dict[str, str] = {}
        """Addresses of pods by name; others get one of 10.244.0.0/16."""
        self.serving: set[str] = set()
        """Pods that do not end, once deleted, while they are in here."""
        self._said: dict[str, bool] = {}
        self._ending: dict[str, float] = {}

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError, ApiError):
                pods = await self._cluster.ask("GET", "/api/v1/pods")
                for pod in pods["items"]:
                    await self._one(pod)
            await asyncio.sleep(self.POLL_S)

    async def _one(self, pod: dict[str, Any]) -> None:
        metadata, now = pod["metadata"], asyncio.get_running_loop().time()
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        uid, ready = metadata["uid"], metadata["name"] not in self.unready
        if "deletionTimestamp" in metadata:
            since = self._ending.setdefault(uid, now)
            if now - since >= self.grace_s and metadata["name"] not in self.serving:
                await self._cluster.ask("DELETE", path, {"gracePeriodSeconds": 0})
        elif self._said.get(uid) != ready:
            if not pod["spec"].get("nodeName"):  # there is no scheduler
                target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
                bound = {"apiVersion": "v1", "kind": "Binding", "target": target}
                bound["metadata"] = {"name": metadata["name"]}
                await self._cluster.ask("POST", f"{path}/binding", bound)
            known = pod.get("status", {}).get("podIP")
            address = known or self.addresses.get(metadata["name"]) or self._address()
            condition = {"type": "Ready", "status": "True" if ready else "False"}
            status = {
                "phase": "Running",
                "podIP": address,
                "podIPs": [{"ip": address}],
                "conditions": [condition],
            }
            await self._cluster.ask("PATCH", f"{path}/status", {"status": status})
            self._said[uid] = ready

    def _address(self) -> str:
        self._addresses += 1
        return f"10.244.{self._addresses // 250}.{self._addresses % 250 + 1}"
