"""What the pickers know of a request, as messages of the admin API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate_api.admin.v1 import admin_pb2
from xds_server.fleet.change import BadChange

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from xds_server.applications.traffic.inquiry import FoundRequest

MAX_CHARS: Final = 128


async def find(
    ask: Callable[[str], Awaitable[FoundRequest]] | None, request: str
) -> admin_pb2.GetRequestResponse:
    """Ask for a request.

    Raises:
        BadChange: The id is empty, too long, or has characters that cannot be printed.
    """
    if not 0 < len(request) <= MAX_CHARS or not request.isprintable():
        raise BadChange(f"a request's id must have 1 to {MAX_CHARS} printable characters")
    if ask is None:
        return admin_pb2.GetRequestResponse()
    found = await ask(request)
    return admin_pb2.GetRequestResponse(
        records=[
            admin_pb2.RequestRecord(picker=each.picker, record_json=record)
            for each in found.told
            for record in each.records
        ],
        pickers=[
            admin_pb2.PickerAnswer(picker=each.picker, since_seconds=each.since_s)
            for each in found.told
        ],
        silent=found.silent,
    )
