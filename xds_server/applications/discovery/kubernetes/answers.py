"""What an API server answers, parsed: pages of a list, events of a watch, refusals. Pure.

Rules:

1. Nothing is taken on trust: what is not the JSON that the API promises is a ``BadAnswerError``,
   whose message says what was expected.
2. A line of a watch is at most ``MAX_EVENT_BYTES``; a longer one is an error before it is whole.
3. Of an answer of any size, at most ``MAX_QUOTED`` characters are quoted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_EVENT_BYTES: Final = 4 * 2**20
"""Largest line of a watch. A slice has at most 1,000 endpoints, of less than a kilobyte each."""
MAX_PAGE_BYTES: Final = 64 * 2**20
"""Largest page of a list."""
MAX_QUOTED: Final = 200
GONE: Final = 410
FORBIDDEN: Final = 403
UNAUTHORIZED: Final = 401
NOT_FOUND: Final = 404
_TOO_NEW: Final = "ResourceVersionTooLarge"
_USER: Final = re.compile(r'User "([^"]{1,253})" cannot ')

Verb = Literal["list", "watch", "get", "create", "update", "delete"]
Kind = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind of objects that is listed and watched."""

    group: str
    """API group; empty for the core."""
    version: str
    kind: str
    plural: str
    absent: str
    """What is meant if the server does not know the kind."""
    verbs: str = "list, watch"
    """What a Role must allow."""

    @property
    def name(self) -> str:
        """What the API server calls the kind where it refuses something."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str) -> str:
        """Return the path of the namespace's objects."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return f"{root}/namespaces/{namespace}/{self.plural}"


SLICES: Final = ResourceKind(
    "discovery.k8s.io",
    "v1",
    "EndpointSlice",
    "endpointslices",
    "it is no API server of Kubernetes 1.21 or later",
)


class BadAnswerError(Exception):
    """The answer is not what the API promises."""


class ExpiredError(Exception):
    """The version or the list's continuation is gone (410), or not known yet: list anew."""


class RefusedError(Exception):
    """The server refuses; the message is one sentence that says what would help.

    Args:
        sentence: What was refused, and the remedy.
        wait_s: Seconds that the server asks to wait; ``None`` if it says nothing.
        code: HTTP status; 0 if there is none.
    """

    def __init__(self, sentence: str, wait_s: float | None = None, code: int = 0) -> None:
        super().__init__(sentence)
        self.wait_s = wait_s
        self.code = code


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list."""

    items: tuple[dict[str, Any], ...]
    version: str
    """ResourceKind version of the list: a watch goes on from it."""
    more: str
    """Continuation of the list; empty in its last page."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change, or a bookmark: a version without a change."""

    kind: Kind
    object: dict[str, Any]
    version: str


class Lines:
    """Cuts the chunks of a watch into lines, with bounded memory."""

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines that end in ``chunk``, without their ends; empty ones are left out.

        Raises:
            BadAnswerError: A line is longer than the bound.
        """
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._rest += chunk[start:end]
            start = end + 1
            self._check()
            line, self._rest = bytes(self._rest), bytearray()
            if line.strip():
                yield line
        self._rest += chunk[start:]
        self._check()

    def _check(self) -> None:
        if len(self._rest) > self._max_bytes:
            raise BadAnswerError(f"an event is larger than {self._max_bytes} bytes")


def page(body: bytes, resource: ResourceKind = SLICES) -> Page:
    """Parse a page of a list.

    Raises:
        BadAnswerError: It is no list of these objects.
    """
    found = _object(body, "a list")
    items, kind = found.get("items"), found.get("kind")
    # A client of no kind at all may leave out empty lists: Go's encoder writes null.
    wanted = f"{resource.kind}List"
    items = [] if items is None and kind == wanted else items
    if kind != wanted or not isinstance(items, list):
        article = "an" if wanted[0] in "EI" else "a"
        raise BadAnswerError(f"expected {article} {wanted}, not {_quoted(body)}")
    if not all(isinstance(item, dict) for item in items):
        raise BadAnswerError("an item of the list is no object")
    metadata = _metadata(found)
    more = metadata.get("continue") or ""
    if not isinstance(more, str):
        raise BadAnswerError("the list's continuation is no text")
    return Page(tuple(items), _version(metadata), more)


def event(line: bytes) -> Event:
    """Parse a line of a watch.

    Raises:
        BadAnswerError: It is no event, or one that a watch does not have.
        ExpiredError: It says that the version is not kept any more.
        RefusedError: It says that the watch ends for another reason.
    """
    found = _object(line, "an event")
    kind, item = found.get("type"), found.get("object")
    if not isinstance(item, dict):
        raise BadAnswerError(f"expected an event with an object, not {_quoted(line)}")
    if kind == "ERROR":
        code = item.get("code")
        raise refusal("watch", "", code if isinstance(code, int) else 0, item, "")
    if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
        raise BadAnswerError(f"an event of the unknown type {_quoted(str(kind).encode())}")
    return Event(kind, item, _version(_metadata(item)))


def status(body: bytes) -> dict[str, Any]:
    """Return the Status object of a refusal; empty if it is none, such as a proxy's page."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) and found.get("kind") == "Status" else {}


def refusal(
    verb: Verb,
    namespace: str,
    code: int,
    said: dict[str, Any],
    server: str,
    retry_after: str | None = None,
    resource: ResourceKind = SLICES,
) -> ExpiredError | RefusedError:
    """Turn a refusal into the error to raise.

    Args:
        verb: What was asked.
        namespace: In which namespace.
        code: HTTP status, or the code of an ERROR event; 0 if there is none.
        said: The Status object; empty if there is none.
        server: The API server's URL.
        retry_after: The header of that name; only seconds are understood.
        resource: What was asked for.
    """
    message = said.get("message")
    text = message if isinstance(message, str) else ""
    if code == GONE or said.get("reason") in ("Expired", "Gone"):
        return ExpiredError(text[:MAX_QUOTED])
    if _too_new(said):
        return ExpiredError(text[:MAX_QUOTED])
    if code == FORBIDDEN:
        return RefusedError(_forbidden(verb, namespace, text, server, resource), code=code)
    if code == UNAUTHORIZED:
        return RefusedError(
            f"{server} does not accept the credentials (401): the token has expired, or is "
            "another cluster's",
            code=code,
        )
    if code == NOT_FOUND:
        return RefusedError(
            f"{server} has no {resource.name}/{resource.version} (404): {resource.absent}",
            code=code,
        )
    said_why = f": {text[:MAX_QUOTED]}" if text else ""
    number = f"HTTP status {code}" if code else "an error"
    return RefusedError(
        f"{server or 'the API server'} answers a {verb} with {number}{said_why}",
        _wait_s(said, retry_after),
        code,
    )


def _forbidden(verb: Verb, namespace: str, text: str, server: str, resource: ResourceKind) -> str:
    user = _USER.search(text)
    who = f" to {user[1]}" if user else ""
    group = resource.group or '""'
    return (
        f"{server} forbids{who} to {verb} {resource.name} in the namespace {namespace!r}: "
        f"bind there a Role with apiGroups [{group}], resources [{resource.plural}] and verbs "
        f"[{resource.verbs}]"
    )


def _wait_s(said: dict[str, Any], retry_after: str | None) -> float | None:
    if retry_after is not None and re.fullmatch(r"[0-9]{1,9}", retry_after):
        return float(retry_after)
    details = said.get("details")
    seconds = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    return float(seconds) if isinstance(seconds, int) and seconds > 0 else None


def _too_new(said: dict[str, Any]) -> bool:
    """Return whether the server is behind the version asked for, as after etcd was restored."""
    details = said.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return isinstance(causes, list) and any(
        isinstance(cause, dict) and cause.get("reason") == _TOO_NEW for cause in causes
    )


def _object(text: bytes, what: str) -> dict[str, Any]:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise BadAnswerError(f"expected {what} in JSON, not {_quoted(text)}") from None
    if not isinstance(found, dict):
        raise BadAnswerError(f"expected {what}, not {_quoted(text)}")
    return found


def _metadata(found: dict[str, Any]) -> dict[str, Any]:
    metadata = found.get("metadata")
    if not isinstance(metadata, dict):
        raise BadAnswerError("an object has no metadata")
    return metadata


def _version(metadata: dict[str, Any]) -> str:
    version = metadata.get("resourceVersion")
    if not isinstance(version, str) or not version:
        raise BadAnswerError("an object has no resourceVersion")
    return version


def _quoted(text: bytes) -> str:
    return repr(text[:MAX_QUOTED].decode(errors="replace"))
