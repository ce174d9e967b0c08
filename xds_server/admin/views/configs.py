"""The resources of each client, for operators.

Rules:

1. An answer has at most ``MAX_RESOURCES`` resources and about ``MAX_JSON_CHARS`` characters of what
   they say; it counts what it leaves out.
2. What is to be shown is collected at one moment, in the event loop. Content is converted in a
   worker thread, once for all clients that hold the same version.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from tidegate_api.admin.v1 import admin_pb2
from tidegate_api.names import SHORT_TYPE
from xds_server.admin.views.redaction import readable
from xds_server.fleet.change import UnknownName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from xds_server.protocol.messages import ClientView, ResourceView

MAX_RESOURCES: Final = 20_000
MAX_JSON_CHARS: Final = 24 * 2**20


class ClientResources(NamedTuple):
    """A client and those of its resources that are asked for."""

    view: ClientView
    resources: list[ResourceView]


class Collected(NamedTuple):
    """What is shown."""

    clients: list[ClientResources]
    left_out: int
    """Number of resources without room."""


def collected(
    request: admin_pb2.GetConfigRequest,
    clients: Sequence[ClientView],
    resources: Callable[[int], Iterable[ResourceView]],
) -> Collected:
    """Return what a request asks for.

    Args:
        request: The filters.
        clients: The connected clients.
        resources: Returns the resources of a client by its number.

    Raises:
        UnknownName: There is no such client or type.
    """
    known = dict.fromkeys(each.node for each in clients)
    if request.client and request.client not in known:
        raise UnknownName("client", request.client, known)
    short = request.type.upper()
    if short and short not in SHORT_TYPE.values():
        raise UnknownName("type of resources", request.type, SHORT_TYPE.values())
    wanted = _pattern(request.name)
    room, left_out = MAX_RESOURCES, 0
    found = []
    for view in clients:
        if request.client and view.node != request.client:
            continue
        rows = [
            each
            for each in resources(view.number)
            if (not short or each.short == short) and wanted(each.name)
        ]
        left_out += max(0, len(rows) - room)
        found.append(ClientResources(view, rows[:room]))
        room -= len(rows[:room])
    return Collected(found, left_out)


def answer(found: Collected, *, content: bool) -> admin_pb2.GetConfigResponse:
    """Return the message; CPU-bound with ``content``."""
    texts: dict[tuple[str, str, str], str] = {}
    room, left_out = MAX_JSON_CHARS, found.left_out
    made = admin_pb2.GetConfigResponse()
    for view, resources in found.clients:
        client = made.clients.add(node=view.node, kind=view.kind, peer=view.peer)
        for each in resources:
            text = ""
            if content and each.packed:
                key = (each.type_url, each.name, each.version)
                if key not in texts:
                    texts[key] = json.dumps(readable(each.packed), ensure_ascii=False)
                text = texts[key]
            if len(text) > room:
                left_out += 1
                continue
            room -= len(text)
            client.resources.add(
                type=each.short,
                name=each.name,
                version=each.version,
                version_acked=each.version_acked,
                state=each.state,
                json=text,
            )
    made.left_out = left_out
    return made


def _pattern(name: str) -> Callable[[str], bool]:
    if not name:
        return lambda _: True
    expression = re.compile(".*".join(map(re.escape, name.split("*"))), re.DOTALL)
    return lambda each: expression.fullmatch(each) is not None
