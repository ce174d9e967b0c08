"""An API server of EndpointSlices or others, with the answers of a real one and faults on demand.

The forms of its answers are those of ``tests/contract/fixtures/kubernetes-1.36.3``; a contract test
compares them. Only EndpointSlices are recorded there: what a selector makes of a watch is by
Kubernetes' documented rules, not by recordings. It speaks HTTP on loopback, as ``kubectl proxy``
does.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from aiohttp import web

from support.sites import end
from tidegate.stack.processes.ports import HeldPorts
from xds_server.applications.discovery.kubernetes.answers import SLICES, ResourceKind

if TYPE_CHECKING:
    from types import TracebackType


def refused(code: int, reason: str, message: str, **details: Any) -> dict[str, Any]:
    """Return a Status object."""
    made: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    return {**made, "details": details} if details else made


def too_old(version: str, kept: int) -> dict[str, Any]:
    """Return the Status of a version that is not kept."""
    return refused(410, "Expired", f"too old resource version: {version} ({kept})")


@dataclass
class FakeApiServer:
    """One namespace's objects of a kind, their history, and what goes wrong."""

    resource: ResourceKind = SLICES
    beside: tuple[FakeApiServer, ...] = ()
    """Servers of other kinds that answer at the same address."""
    page_size: int | None = None
    """Pages are at most this long, whatever limit is asked for."""
    tokens: set[str] | None = None
    """Accepted tokens; ``None`` = none is needed."""
    denied: set[str] = field(default_factory=set)
    """Verbs that are forbidden."""
    gone_in_stream: bool = False
    """A version that is not kept is refused by an event in the stream, not by a status."""
    silent_about_the_future: bool = False
    """A watch from a version that is not there yet is answered with an empty stream."""
    faults: list[web.StreamResponse | bytes | None] = field(default_factory=list)
    """Answers to give instead, one per request; bytes are a watch's stream, ``None`` is no answer
    at all."""
    asked: list[dict[str, str]] = field(default_factory=list)
    """The queries of all requests."""

    def __post_init__(self) -> None:
        """Begin with nothing."""
        self.version = 100
        self.kept = 0
        self.slices: dict[str, dict[str, Any]] = {}
        self._history: list[tuple[int, dict[str, Any] | None, dict[str, Any] | None]] = []
        """Version, and the object before and after it; ``None`` = there was or is none."""
        self._changed = asyncio.Event()
        self._continuations: dict[str, tuple[int, list[dict[str, Any]]]] = {}
        self._watches: set[asyncio.Task[Any]] = set()
        self.watched = asyncio.Event()
        """A watch has begun since the last cut."""
        self._runner: web.AppRunner | None = None
        self._ports = HeldPorts()
        self.port = 0

    # --- Life ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Listen on a port that is its own until the end."""
        self.port = self._ports.take()
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Stop."""
        await self.stop()
        self._ports.close()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen; also after ``stop``."""
        app = web.Application()
        for each in (self, *self.beside):
            app.router.add_get(each.resource.path("{namespace}"), each.answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()

    async def stop(self) -> None:
        """Break all connections and listen no more; the state stays, as etcd's does."""
        for each in (self, *self.beside):
            each.cut()
        if self._runner is not None:
            await end(self._runner)
            self._runner = None

    def cut(self) -> None:
        """Break all watches."""
        self.watched.clear()
        for task in self._watches:
            task.cancel()

    # --- State -----------------------------------------------------------------------------------

    def put(self, made: dict[str, Any]) -> None:
        """Add or replace a slice."""
        name = made["metadata"]["name"]
        self.version += 1
        made["metadata"] = {**made["metadata"], "resourceVersion": str(self.version)}
        self._history.append((self.version, self.slices.get(name), made))
        self.slices[name] = made
        self._tell()

    def delete(self, name: str) -> None:
        """Delete a slice."""
        self.version += 1
        self._history.append((self.version, self.slices.pop(name), None))
        self._tell()

    def compact(self) -> None:
        """Forget all versions before this one."""
        self.version += 1
        self.kept = self.version

    def restore(self, version: int) -> None:
        """Begin again with a store that has other versions."""
        self.version, self.kept = version, version
        self._history.clear()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # --- Answers ---------------------------------------------------------------------------------

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a list or a watch."""
        query = dict(request.query)
        self.asked.append(query)
        if self.faults:
            fault = self.faults.pop(0)
            if fault is None:
                assert request.transport is not None
                request.transport.close()
                return web.Response()
            if isinstance(fault, bytes):
                return await self._stream(request, [fault])
            return fault
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens is not None and token not in self.tokens:
            return self._refuse(refused(401, "Unauthorized", "Unauthorized"))
        verb = "watch" if "watch" in query else "list"
        if verb in self.denied:
            return self._refuse(
                refused(
                    403,
                    "Forbidden",
                    f'{self.resource.name} is forbidden: User "tidegate" cannot {verb} resource '
                    f'"{self.resource.plural}" in API group "{self.resource.group}" in the '
                    f'namespace "{request.match_info["namespace"]}"',
                    group=self.resource.group,
                    kind=self.resource.plural,
                )
            )
        return await self._watch(request, query) if verb == "watch" else self._list(query)

    def _refuse(self, said: dict[str, Any]) -> web.Response:
        return web.json_response(said, status=said["code"])

    def _list(self, query: dict[str, str]) -> web.Response:
        asked = query.get("continue")
        if asked is None:
            listed = [self.slices[name] for name in sorted(self.slices)]
            at, rest = self.version, [each for each in listed if self._selects(query, each)]
        else:
            at, rest = self._continuations[asked]
            if at < self.kept:
                message = "The provided continue parameter is too old to display a consistent list"
                return self._refuse(refused(410, "Expired", message))
        size = int(query.get("limit", "0")) or len(rest)
        size = min(size, self.page_size or size) if "limit" in query else size
        more = ""
        if rest[size:]:
            more = f"c{len(self._continuations)}"
            self._continuations[more] = (at, rest[size:])
        metadata = {"resourceVersion": str(at), **({"continue": more} if more else {})}
        kind = {**self._api, "kind": f"{self.resource.kind}List"}
        return web.json_response({**kind, "metadata": metadata, "items": rest[:size]})

    @property
    def _api(self) -> dict[str, str]:
        group, version = self.resource.group, self.resource.version
        return {"kind": self.resource.kind, "apiVersion": f"{group}/{version}".lstrip("/")}

    def _selects(self, query: dict[str, str], made: dict[str, Any]) -> bool:
        """Return whether the query's selectors match; those of slices match all here."""
        if self.resource is SLICES:
            return True
        metadata = made["metadata"]
        labels = {**metadata.get("labels", {}), "metadata.name": metadata["name"]}
        asked = [query.get("labelSelector"), query.get("fieldSelector")]
        pairs = [pair.split("=") for each in asked if each for pair in each.split(",")]
        return all(labels.get(key) == value for key, value in pairs)

    async def _watch(self, request: web.Request, query: dict[str, str]) -> web.StreamResponse:
        version = query["resourceVersion"]
        if int(version) < self.kept:
            said = too_old(version, self.kept)
            if not self.gone_in_stream:
                return self._refuse(said)
            return await self._stream(request, [_line("ERROR", said)])
        if int(version) > self.version and not self.silent_about_the_future:
            cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
            message = f"Too large resource version: {version}, current: {self.version}"
            return self._refuse(
                refused(504, "Timeout", message, causes=[cause], retryAfterSeconds=1)
            )
        return await self._follow(request, int(version), query)

    async def _follow(
        self, request: web.Request, version: int, query: dict[str, str]
    ) -> web.StreamResponse:
        answer = await self._begun(request)
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)
        self.watched.set()
        try:
            async with asyncio.timeout(float(query["timeoutSeconds"])):
                while True:
                    changed = self._changed
                    for at, before, after in self._history:
                        if at > version:
                            version = at
                            if line := self._told(query, at, before, after):
                                await answer.write(line)
                    await changed.wait()
        except TimeoutError:
            return answer  # as the client asked
        except asyncio.CancelledError:
            if request.transport is not None:
                request.transport.abort()
            return answer
        finally:
            self._watches.discard(task)

    def _told(
        self,
        query: dict[str, str],
        at: int,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
    ) -> bytes:
        """Return the line of a change as a watch with these selectors sees it; it may be empty."""
        was = before if before is not None and self._selects(query, before) else None
        if after is not None and self._selects(query, after):
            return _line("ADDED" if was is None else "MODIFIED", {**self._api, **after})
        if was is None:
            return b""
        # As it was when it matched, with the version of the change.
        metadata = {**was["metadata"], "resourceVersion": str(at)}
        return _line("DELETED", {**self._api, **was, "metadata": metadata})

    def bookmark(self) -> bytes:
        """Return the line of a bookmark of the present version."""
        metadata = {"resourceVersion": str(self.version), "creationTimestamp": None}
        return _line(
            "BOOKMARK", {**self._api, "metadata": metadata, "endpoints": None, "ports": None}
        )

    async def _stream(self, request: web.Request, lines: list[bytes]) -> web.StreamResponse:
        answer = await self._begun(request)
        for line in lines:
            await answer.write(line)
        return answer

    async def _begun(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        return answer


def _line(kind: str, found: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"
