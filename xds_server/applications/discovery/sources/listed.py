"""Replicas from a file that another program writes: JSON or YAML, watched by polling.

Rules:

1. The file has a list of endpoints, or a mapping whose only key ``endpoints`` has it. An entry has
   ``http``, ``grpc`` or both (``ip:port``) and may have ``id``, ``variant``, ``zone``, ``device``,
   ``serving`` and ``terminating``.
2. A file that is missing, half-written or broken in any entry changes nothing; ``trouble`` says
   where it is wrong. An empty list must be written as such.
3. It is read when it has been the same for two polls (``xds_server.applications.discovery.file``).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, TypeAdapter, ValidationError

from xds_server.applications.discovery.file import FileWatch
from xds_server.applications.discovery.values import MAX_ENDPOINTS, Found, Observation
from xds_server.fleet import document
from xds_server.fleet.model.fields import EndpointId, HostPort, Label, Name, Strict

if TYPE_CHECKING:
    from collections.abc import Callable


class Unreadable(ValueError):  # noqa: N818 - reads as the sentence it is
    """The text is no list of endpoints; the message says where it is wrong."""


class _Entry(Strict):
    id: EndpointId | None = None
    http: HostPort | None = None
    grpc: HostPort | None = None
    variant: Name | None = None
    zone: Label | None = None
    device: Label | None = None
    serving: bool = True
    terminating: bool = False


_LIST = TypeAdapter(Annotated[list[_Entry], Field(max_length=MAX_ENDPOINTS)])


def read_endpoints(text: str) -> Observation:
    """Return the endpoints of a file's text.

    Raises:
        Unreadable: It is no list of endpoints.
    """
    if not text.strip():
        raise Unreadable("the file is empty; write `endpoints: []` if there are none")
    try:
        root = document.read(text)
    except document.DocumentError as error:
        where = "" if error.line is None else f"line {error.line}: "
        raise Unreadable(f"{where}{error.reason}") from None
    content = root.plain()
    if isinstance(content, dict):
        if set(content) != {"endpoints"}:
            raise Unreadable(
                "write a list of endpoints, or `endpoints:` with one, and no other key"
            )
        content = content["endpoints"]
    try:
        entries = _LIST.validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = root.closest(("endpoints", *first["loc"]) if root.child("endpoints") else first["loc"])
        where = ".".join(map(str, first["loc"]))
        raise Unreadable(f"line {at.line}: {where}: {first['msg']}") from None
    return Observation(tuple(_found(number, each) for number, each in enumerate(_single(entries))))


def _single(entries: list[_Entry]) -> list[_Entry]:
    seen: set[str] = set()
    for number, each in enumerate(entries):
        name = each.id or each.grpc or each.http or ""
        if name in seen:
            raise Unreadable(f"entry {number}: '{name}' is listed twice")
        seen.add(name)
    return entries


def _found(number: int, entry: _Entry) -> Found:
    identity = entry.id or entry.grpc or entry.http
    if identity is None or (entry.http is None and entry.grpc is None):
        raise Unreadable(f"entry {number}: an endpoint needs `grpc`, `http` or both")
    return Found(
        identity,
        entry.http,
        entry.grpc,
        entry.variant,
        entry.zone,
        entry.device,
        entry.serving,
        entry.terminating,
    )


class ListedEndpoints:
    """Watches a file of endpoints; see the module's rules.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    async def run(
        self, found: Callable[[Observation], None], trouble: Callable[[str], None]
    ) -> None:
        """Report what the file lists until cancelled."""

        async def taken(text: str) -> None:
            try:
                observation = read_endpoints(text)
            except Unreadable as error:
                trouble(f"{self._path}: {error}; what was found before stays")
            else:
                trouble("")
                found(observation)

        await FileWatch(self._path, taken, trouble).run()
