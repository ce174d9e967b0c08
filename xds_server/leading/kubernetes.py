"""Values in Secrets and a lease in a Lease of Kubernetes.

Rules:

1. The head is the Secret ``NAME``. It is replaced only in the version that was read, which the API
   server compares. Other values are immutable Secrets ``NAME-…``, each with the label ``STORE``.
   They are Secrets because the fleet's seed is in them.
2. The Lease ``NAME`` only says who may try: what is committed is decided by the head alone. A Lease
   is free once it has had the same version for its time on this server's clock, from after one
   answer to before another request, so that clocks of other machines do not matter.
3. A request is answered within ``CALL_S``. What may be repeated is repeated once; a swap is not
   (``Keys``).

Calls block, so asynchronous code must make them in a worker thread. Any thread may call.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import secrets
import socket
import threading
from concurrent.futures import CancelledError
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import aiohttp
import orjson

from xds_server.applications.discovery.kubernetes.access import AccessError
from xds_server.applications.discovery.kubernetes.answers import (
    NOT_FOUND,
    BadAnswerError,
    ExpiredError,
    RefusedError,
    ResourceKind,
    page,
)
from xds_server.applications.discovery.kubernetes.asking import (
    OK,
    ApiCall,
    answered,
    body,
    reason,
    session,
)
from xds_server.fleet.stored.shared import HEAD, SharedFault, Unreachable
from xds_server.leading.keeper import Granted, clock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from xds_server.applications.discovery.kubernetes.access import Access, AccessFiles
    from xds_server.applications.discovery.kubernetes.answers import Verb

_T = TypeVar("_T")

CALL_S: Final = 3.0
"""Seconds for the answer to a request."""
STORE: Final = "tidegate.dev/store"
"""Label of all objects: the name of the store."""
LEADER: Final = "tidegate.dev/leader"
"""Annotation of the Lease: the leader's value."""
MAX_ANSWER_BYTES: Final = 8 * 2**20
PAGE: Final = 500
"""Most names in a part of a list."""

_ABSENT: Final = "it is no API server of Kubernetes 1.19 or later, or the namespace does not exist"
SECRETS: Final = ResourceKind(
    "", "v1", "Secret", "secrets", _ABSENT, "get, list, create, update, delete"
)
LEASES: Final = ResourceKind(
    "coordination.k8s.io", "v1", "Lease", "leases", _ABSENT, "get, create, update"
)
_NAMES: Final = replace(SECRETS, kind="PartialObjectMetadata")
"""Without what is in them."""
_ONLY_NAMES: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_CREATED: Final = 201
_CONFLICT: Final = 409
_BUSY: Final = 429
_FAULT: Final = 500
"""Statuses from here on are the server's fault: the request may have taken effect."""


class _Seen(NamedTuple):
    """A version of the Lease, and when its first answer was read."""

    version: str
    at: float


class Kubernetes:
    """The values of a store in a namespace, and its lease; see the module's rules.

    Args:
        namespace: Of all objects.
        name: Of the store.
        files: Where the API server and the credentials are found.
    """

    lease_s = 15
    """As Kubernetes' own: an API server may be away for less while it is started again."""

    def __init__(self, namespace: str, name: str, files: AccessFiles) -> None:
        self._namespace, self._name, self._files = namespace, name, files
        self._http: aiohttp.ClientSession | None = None
        self._seen = _Seen("", 0.0)
        self._free: dict[str, Any] | None = None
        """The Lease as ``leader`` has found it free; ``None`` = there was none."""
        self._held: dict[str, Any] | None = None
        """The Lease as this server wrote it, or read it since, last."""
        self._opening, self._closed = threading.Lock(), False
        self._loop = asyncio.new_event_loop()
        # Its own, so that a lease is renewed whatever the others wait for.
        self._thread = threading.Thread(target=self._loop.run_forever, name="store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the connections; calls that are open end with an error."""
        with self._opening:
            if self._closed:
                return
            self._closed = True

        async def closed() -> None:
            open_ = asyncio.all_tasks() - {asyncio.current_task()}
            for each in open_:
                each.cancel()
            await asyncio.gather(*open_, return_exceptions=True)
            if self._http is not None:
                await self._http.close()

        asyncio.run_coroutine_threadsafe(closed(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def read(self, key: str) -> tuple[bytes, int] | None:
        """Return the newest value and its version; ``None`` = there is none."""
        found = self._repeated(partial(self._get, SECRETS, self._key(key)))
        if found is None:
            return None
        try:
            return base64.b64decode(found["data"]["value"], validate=True), _version(found)
        except (KeyError, TypeError, ValueError, binascii.Error):
            raise SharedFault(f"the Secret {self._key(key)} is not as it was written") from None

    def write(self, key: str, value: bytes) -> None:
        """Write a value; a repeated request finds its own."""
        made = {**self._secret(key, value), "immutable": True}
        self._repeated(partial(self._asked, "create", SECRETS, "", made, (_CREATED, _CONFLICT)))

    def swap(self, key: str, value: bytes, version: int) -> int | None:
        """Write a value in place of that version, 0 = of none; return its version, or ``None``."""
        made = self._secret(key, value)
        if version:
            made["metadata"]["resourceVersion"] = str(version)
        found = self._put(SECRETS, made, exists=version > 0)
        return None if found is None else _version(found)

    def delete(self, first: str, beyond: str) -> None:
        """Delete the keys from ``first`` to before ``beyond``."""
        low, high = self._key(first), self._key(beyond)
        for each in [each for each in self._names() if low <= each < high]:
            self._repeated(partial(self._asked, "delete", SECRETS, each, None, (OK, NOT_FOUND)))

    def leader(self) -> bytes | None:
        """Return the value of the server that leads; ``None`` = the lease is free (rule 2)."""
        before = clock()
        self._free, found = None, self._repeated(partial(self._get, LEASES, self._name))
        if found is None:
            return None
        spec = found.get("spec") or {}
        version = str(_version(found))
        if version != self._seen.version:
            self._seen = _Seen(version, clock())
        ended = before - self._seen.at >= _seconds(spec, self.lease_s)
        if ended or not spec.get("holderIdentity"):
            self._free = found
            return None
        said = (found["metadata"].get("annotations") or {}).get(LEADER, "")
        return str(said).encode()

    def grant(self, ttl_s: int) -> Granted:
        """Return a new lease, unknown to others until it is claimed."""
        return Granted(secrets.randbits(63), ttl_s)

    def claim(self, value: bytes, lease: Granted) -> bool:
        """Take the lease that ``leader`` has found free; return False if another has it."""
        free, now = self._free, _now()
        terms = 0 if free is None else _count((free.get("spec") or {}).get("leaseTransitions"))
        spec = {
            "holderIdentity": _holder(lease),
            "leaseDurationSeconds": int(lease.ttl_s),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": terms + 1,
        }
        made = self._object(LEASES, self._name, {LEADER: value.decode()})
        if free is not None:
            made["metadata"]["resourceVersion"] = free["metadata"]["resourceVersion"]
        found = self._put(LEASES, {**made, "spec": spec}, exists=free is not None)
        if found is not None:
            self._held = found
        return found is not None

    def keep(self, lease: Granted) -> float:
        """Renew a lease; return its time in seconds from now, 0 or less = it has ended."""
        for _ in range(2):  # a renewal without an answer may have changed the version
            known = self._held
            if known is None or (known.get("spec") or {}).get("holderIdentity") != _holder(lease):
                return 0.0
            known["spec"]["renewTime"] = _now()
            found = self._put(LEASES, known, exists=True)
            if found is not None:
                self._held = found
                return lease.ttl_s
            self._held = self._get(LEASES, self._name)
        raise Unreachable("the Lease changes faster than it can be renewed")

    def revoke(self, lease: Granted) -> None:
        """End a lease."""
        found = self._repeated(partial(self._get, LEASES, self._name))
        if found is None or (found.get("spec") or {}).get("holderIdentity") != _holder(lease):
            return
        del found["spec"]["holderIdentity"]
        self._put(LEASES, found, exists=True)

    def _key(self, key: str) -> str:
        """Return the name of a value's Secret; names are in the order of keys."""
        return self._name if key == HEAD else f"{self._name}-{key.replace('/', '-')}"

    def _secret(self, key: str, value: bytes) -> dict[str, Any]:
        made = self._object(SECRETS, self._key(key), {})
        return {**made, "type": STORE, "data": {"value": base64.b64encode(value).decode()}}

    def _object(
        self, resource: ResourceKind, name: str, annotations: dict[str, str]
    ) -> dict[str, Any]:
        labels = {STORE: self._name}
        metadata = {"name": name, "labels": labels, "annotations": annotations}
        version = f"{resource.group}/{resource.version}".lstrip("/")
        return {"apiVersion": version, "kind": resource.kind, "metadata": metadata}

    def _names(self) -> list[str]:
        found: list[str] = []
        asked = ApiCall("list", SECRETS, self._namespace)
        headers = {"Accept": _ONLY_NAMES}
        params = {"labelSelector": f"{STORE}={self._name}", "limit": str(PAGE)}
        while True:
            text = self._repeated(partial(self._text, asked, params=params, headers=headers))
            part = self._told(partial(page, text, _NAMES))
            found += [str(each["metadata"]["name"]) for each in part.items]
            if not part.more:
                return found
            params["continue"] = part.more

    def _get(self, resource: ResourceKind, name: str) -> dict[str, Any] | None:
        return self._asked("get", resource, name, None, (OK, NOT_FOUND))

    def _put(
        self, resource: ResourceKind, made: dict[str, Any], *, exists: bool
    ) -> dict[str, Any] | None:
        """Create or replace an object; return it as stored, ``None`` = another one is there."""
        if not exists:
            return self._asked("create", resource, "", made, (_CREATED, _CONFLICT))
        name = str(made["metadata"]["name"])
        return self._asked("update", resource, name, made, (OK, NOT_FOUND, _CONFLICT))

    def _asked(
        self,
        verb: Verb,
        resource: ResourceKind,
        name: str,
        made: dict[str, Any] | None,
        statuses: tuple[int, ...],
    ) -> dict[str, Any] | None:
        """Send a request; return the object, ``None`` for a conflict, or where there is none."""
        asked = ApiCall(verb, resource, self._namespace, name, statuses)
        options: dict[str, Any] = {}
        if made is not None:
            options = {"data": orjson.dumps(made), "headers": {"Content-Type": "application/json"}}
        found = self._told(lambda: orjson.loads(self._text(asked, **options)))
        if isinstance(found, dict) and found.get("kind") == resource.kind:
            return found
        if isinstance(found, dict) and found.get("kind") == "Status":
            return None
        raise SharedFault(f"the API server answers a {verb} of {resource.name} with no object")

    def _text(self, asked: ApiCall, **options: Any) -> bytes:
        access = self._told(self._files.read)
        return self._run(self._answer(access, asked, options))

    async def _answer(self, access: Access, asked: ApiCall, options: dict[str, Any]) -> bytes:
        try:
            async with asyncio.timeout(CALL_S):
                if self._http is None:
                    self._http = session(4)
                async with answered(self._http, access, asked, **options) as answer:
                    return await body(answer, MAX_ANSWER_BYTES)
        except RefusedError as error:
            if error.code == _BUSY or error.code >= _FAULT:
                raise Unreachable(str(error)) from None
            raise SharedFault(str(error)) from None
        except (BadAnswerError, ExpiredError) as error:
            raise SharedFault(f"{access.url} does not answer as an API server: {error}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:  # a timeout is an OSError
            raise Unreachable(f"{access.url} cannot be asked: {reason(error)}") from None

    def _run(self, call: Coroutine[Any, Any, _T]) -> _T:
        with self._opening:  # so that ``close`` finds each call that it must end
            if self._closed:
                call.close()
                raise Unreachable("the store is closed")
            begun = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return begun.result()
        except CancelledError:
            raise Unreachable("the store is closed") from None

    def _repeated(self, call: Callable[[], _T]) -> _T:
        with contextlib.suppress(Unreachable):
            return call()
        return call()

    def _told(self, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except AccessError as error:
            raise SharedFault(str(error)) from None
        except (BadAnswerError, orjson.JSONDecodeError) as error:
            raise SharedFault(f"the API server does not answer as one: {error}") from None


def _version(found: dict[str, Any]) -> int:
    """Return the version of an object, which Kubernetes promises to be a number.

    Raises:
        SharedFault: It is none.
    """
    try:
        return int(found["metadata"]["resourceVersion"])
    except (KeyError, TypeError, ValueError):
        raise SharedFault("an object of the API server has no version") from None


def _seconds(spec: dict[str, Any], default: int) -> int:
    found = _count(spec.get("leaseDurationSeconds"))
    return found if found > 0 else default


def _count(found: object) -> int:
    return found if isinstance(found, int) else 0


def _holder(lease: Granted) -> str:
    return f"{socket.gethostname()}_{lease.id:016x}"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
