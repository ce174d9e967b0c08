"""Errors of calls as gRPC statuses, and the options of changes.

| error | status |
|---|---|
| the fleet or a value in the request is invalid | INVALID_ARGUMENT |
| a pool, variant, endpoint, revision or operation does not exist | NOT_FOUND |
| it would take the last usable replica of a variant, and is not forced | FAILED_PRECONDITION |
| it is based on a revision that is not in force, and is not forced | ABORTED |
| a fleet would undo drains or canaries that it does not know of | FAILED_PRECONDITION |
| a rollout cannot start, or cannot do what is asked for | FAILED_PRECONDITION |
| too many changes wait | ABORTED |
| too many questions to pickers wait, or too many operations on models | RESOURCE_EXHAUSTED |
| the revision or the operation cannot be stored | FAILED_PRECONDITION |
| an internal error, found before anything was published | INTERNAL |
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from xds_server.applications.canary.controller import StartError
from xds_server.applications.canary.plan import CanaryPlanError
from xds_server.applications.canary.rollout import ActionError
from xds_server.applications.loading.keeper import TooManyOperations
from xds_server.applications.traffic.inquiry import TooManyInquiries
from xds_server.control.operation import DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S, Busy, ChangeOptions
from xds_server.fleet.change import BadChange, UnknownName
from xds_server.fleet.guards.last_replica import LastReplica
from xds_server.fleet.guards.others import ChangedMeanwhile, UndoesOthers
from xds_server.fleet.load import FleetError
from xds_server.fleet.store import StoreError, UnknownRevision
from xds_server.snapshots.check import Inconsistent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tidegate_api.admin.v1 import admin_pb2

MAX_STATUS_BYTES = 4096
"""Longest status text. It is sent in a header, whose size peers bound (by default 8 KiB,
percent-encoded)."""

_STATUS: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (FleetError, grpc.StatusCode.INVALID_ARGUMENT),
    (UnknownName, grpc.StatusCode.NOT_FOUND),
    (UnknownRevision, grpc.StatusCode.NOT_FOUND),
    (BadChange, grpc.StatusCode.INVALID_ARGUMENT),
    (LastReplica, grpc.StatusCode.FAILED_PRECONDITION),
    (ChangedMeanwhile, grpc.StatusCode.ABORTED),
    (UndoesOthers, grpc.StatusCode.FAILED_PRECONDITION),
    (CanaryPlanError, grpc.StatusCode.INVALID_ARGUMENT),
    (StartError, grpc.StatusCode.FAILED_PRECONDITION),
    (ActionError, grpc.StatusCode.FAILED_PRECONDITION),
    (Busy, grpc.StatusCode.ABORTED),
    (TooManyInquiries, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (TooManyOperations, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (StoreError, grpc.StatusCode.FAILED_PRECONDITION),
    (Inconsistent, grpc.StatusCode.INTERNAL),
)
_Method = TypeVar("_Method", bound="Callable[..., Awaitable[Any]]")


def explained(method: _Method) -> _Method:
    """Convert the errors of ``_STATUS`` to gRPC statuses."""

    @functools.wraps(method)
    async def call(self: Any, request: Any, context: Any) -> Any:
        try:
            return await method(self, request, context)
        except tuple(kind for kind, _ in _STATUS) as error:
            status = next(status for kind, status in _STATUS if isinstance(error, kind))
            await context.abort(status, _shortened(str(error)))

    return call  # type: ignore[return-value]  # wraps() keeps the signature, mypy cannot see it


def options_of(options: admin_pb2.ChangeOptions) -> ChangeOptions:
    """Return the options of a change.

    Raises:
        BadChange: The time limit is out of its bounds.
    """
    timeout_s = options.timeout_seconds or DEFAULT_TIMEOUT_S
    if not (math.isfinite(timeout_s) and 0 < timeout_s <= MAX_TIMEOUT_S):
        raise BadChange(f"timeout_seconds must be between 0 and {MAX_TIMEOUT_S:g}")
    return ChangeOptions(
        options.author,
        options.reason,
        options.dry_run,
        options.wait,
        timeout_s,
        force=options.force,
        based_on=options.based_on,
    )


def _shortened(text: str) -> str:
    encoded = text.encode(errors="replace")
    if len(encoded) <= MAX_STATUS_BYTES:
        return text
    return encoded[:MAX_STATUS_BYTES].decode(errors="ignore") + " ..."
