"""An API server of Secrets and Leases: its port, what a real one answered, and a small one."""

from __future__ import annotations

import copy
import itertools
import json
import ssl
import threading
from http.client import HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, urlsplit

from xds_server.applications.discovery.kubernetes.access import AccessFiles
from xds_server.fleet.model.kubernetes import KubernetesApi
from xds_server.leading.kubernetes import LEASES, SECRETS, Kubernetes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Answer = tuple[int, dict[str, Any]]

FIXTURES = Path(__file__).parents[1] / "contract" / "fixtures"
RECORDED = FIXTURES / "kubernetes-1.36.3" / "store.json"
SPACE = "store"


class ApiPort:
    """An HTTP server on a free port; a context manager.

    Args:
        answer: Returns status and body of a method's request to a path, with its body.
    """

    def __init__(self, answer: Callable[[str, str, Any], Answer]) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65_537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                text = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                status, said = answer(self.command, self.path, json.loads(text) if text else None)
                found = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(found)))
                self.end_headers()
                self.wfile.write(found)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def store(self, name: str = "tidegate") -> Kubernetes:
        """Return a client of a store there."""
        return Kubernetes(SPACE, name, AccessFiles(KubernetesApi(url=self.url)))


class ApiRecorder:
    """Passes requests on to an API server, and keeps them with its answers.

    Args:
        url: Of the API server.
        ca: What signs its certificate.
        token: Whose requests they are.
    """

    def __init__(self, url: str, ca: Path, token: str) -> None:
        self._host, self._token = urlsplit(url).netloc, token
        self._context = ssl.create_default_context(cafile=ca)
        self.calls: list[dict[str, Any]] = []

    def answer(self, method: str, path: str, made: Any) -> Answer:
        """Pass a request on."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        if "labelSelector" in path:
            headers["Accept"] = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
        http = HTTPSConnection(self._host, context=self._context, timeout=30)
        try:
            http.request(method, path, None if made is None else json.dumps(made), headers)
            answer = http.getresponse()
            status, said = answer.status, json.loads(answer.read())
        finally:
            http.close()
        call = {"method": method, "path": path, "request": made, "status": status, "answer": said}
        self.calls.append(call)
        return status, said


class SmallApi:
    """Answers as an API server does, in all that the store asks for.

    Args:
        versions: Of the objects that are written.
    """

    def __init__(self, versions: Iterable[int] = itertools.count(1)) -> None:
        self._versions = iter(versions)
        self._lock = threading.Lock()
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        """By plural and name."""
        self.faults: list[tuple[int, bool] | None] = []
        """Of the next writes: a status in place of the answer, and whether they take effect."""
        self.denied: set[tuple[str, str]] = set()
        """Methods and plurals that are forbidden."""

    def answer(self, method: str, path: str, made: Any) -> Answer:
        """Return the answer to a request."""
        parts = urlsplit(path)
        words = parts.path.strip("/").split("/")
        at = words.index("namespaces") + 2
        plural, name = words[at], "".join(words[at + 1 :])
        with self._lock:
            if (method, plural) in self.denied:
                said = f'{plural} is forbidden: User "tidegate" cannot do it'
                return self._refused(403, "Forbidden", said)
            if method != "GET" and self.faults and (fault := self.faults.pop(0)) is not None:
                status, effect = fault
                if effect:
                    self._write(method, plural, name, made)
                return self._refused(status, "InternalError", "etcdserver: request timed out")
            if method == "GET" and not name:
                return self._list(plural, parse_qs(parts.query))
            if method == "GET":
                found = self.objects.get((plural, name))
                return self._absent(plural, name) if found is None else (200, copy.deepcopy(found))
            return self._write(method, plural, name, made)

    def _write(self, method: str, plural: str, name: str, made: Any) -> Answer:
        if method == "DELETE":
            return self._deleted(plural, name)
        metadata = made["metadata"]
        key = (plural, metadata["name"])
        before = self.objects.get(key)
        if method == "POST" and before is not None:
            return self._refused(409, "AlreadyExists", f'{plural} "{key[1]}" already exists')
        if method == "PUT" and before is None:
            return self._absent(plural, name)
        if before and metadata.get("resourceVersion") != before["metadata"]["resourceVersion"]:
            return self._refused(409, "Conflict", "the object has been modified")
        stored = copy.deepcopy(made)
        stored["metadata"]["resourceVersion"] = str(next(self._versions))
        stored["metadata"]["namespace"] = SPACE
        if not stored["metadata"].get("annotations"):
            stored["metadata"].pop("annotations", None)
        self.objects[key] = stored
        return (201 if before is None else 200), copy.deepcopy(stored)

    def _deleted(self, plural: str, name: str) -> Answer:
        if self.objects.pop((plural, name), None) is None:
            return self._absent(plural, name)
        return 200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    def _list(self, plural: str, query: dict[str, list[str]]) -> Answer:
        key, _, value = query["labelSelector"][0].partition("=")
        items = [
            {"metadata": copy.deepcopy(found["metadata"])}
            for (of, _), found in sorted(self.objects.items())
            if of == plural and found["metadata"].get("labels", {}).get(key) == value
        ]
        start, limit = int(query.get("continue", ["0"])[0]), int(query["limit"][0])
        metadata = {"resourceVersion": "1"}
        if items[start + limit :]:
            metadata["continue"] = str(start + limit)
        kind = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
        return 200, {**kind, "metadata": metadata, "items": items[start : start + limit]}

    def _absent(self, plural: str, name: str) -> Answer:
        of = {each.plural: each.name for each in (SECRETS, LEASES)}[plural]
        return self._refused(404, "NotFound", f'{of} "{name}" not found')

    def _refused(self, code: int, reason: str, message: str) -> Answer:
        said = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        return code, {**said, "message": message, "reason": reason, "code": code}


def recorded() -> list[dict[str, Any]]:
    """Return the calls of ``used`` and what the real API server answered."""
    found: list[dict[str, Any]] = json.loads(RECORDED.read_text())
    return found
