"""Operations on models and their comparison: for people, for programs, and as exit codes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf import json_format
from rich.text import Text

from tidegate.cli import views
from tidegate.cli.views import moment
from tidegate.terminal.errors import UNFINISHED, CliError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.message import Message

    from tidegate_api.admin.v1.admin_pb2 import (
        GetModelParityResponse,
        ModelOperation,
        Revision,
    )

SHORT_DIGEST: Final = 12
"""Characters of a digest in a table."""
_TIMES: Final = ("began_unix_ms", "ended_unix_ms", "at_unix_ms")


def data_of(message: Message) -> dict[str, Any]:
    """Return a message for programs, with times as in the history."""
    found: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {key: _readable(key, value) for key, value in found.items()}


def _readable(key: str, value: Any) -> Any:
    if key in _TIMES:
        return moment(int(value)) if int(value) else None
    if key == "number":
        return int(value)
    if isinstance(value, list):
        return [
            {inner: _readable(inner, each) for inner, each in one.items()}
            if isinstance(one, dict)
            else one
            for one in value
        ]
    return value


def lines_of(operation: ModelOperation) -> Text:
    """Return what has become of an operation, one fact per line."""
    of = f"{operation.kind} of {operation.model} in pool {operation.pool}"
    dry = " (dry run, nothing was changed)" if operation.dry_run else ""
    lines = [f"operation {operation.number}: {of}: {operation.phase}{dry}"]
    lines += [f"  {each.text}" for each in operation.steps]
    if operation.left_out:
        lines.append(f"  ({operation.left_out} steps in between are not remembered)")
    return Text("\n".join(lines))


def failure(operation: ModelOperation, *, waited: bool, timeout_s: float) -> CliError | None:
    """Return why an operation is no success; ``None`` = it is one, or was not waited for."""
    follow = f"`tidegate model list {operation.number}`"
    if not operation.ended:
        if not waited:
            return None
        return CliError(
            f"operation {operation.number} has not ended after {timeout_s:g} s; it goes on: follow"
            f" it with {follow}, or give it up with `tidegate model abort {operation.number}`",
            UNFINISHED,
        )
    if operation.phase == "done":
        return None
    now = f"; the replicas serve now: {operation.now}" if operation.now else ""
    stuck = [each.endpoint for each in operation.replicas if each.state == "stuck"]
    if stuck:
        back = f"{', '.join(stuck)} could not be brought back"
        return CliError(f"{operation.why}; and {back}{now}: see {follow}")
    if now:
        return CliError(f"undone: {operation.why}{now}")
    return CliError(f"nothing is changed: {operation.why}")


def rows_of(operations: Iterable[ModelOperation]) -> list[tuple[object, ...]]:
    """Return the rows of a table of operations."""
    return [
        (
            each.number,
            moment(each.began_unix_ms),
            each.kind,
            each.pool,
            each.model,
            each.phase,
            each.author,
            each.why or each.reason,
        )
        for each in operations
    ]


def in_history(
    revisions: Iterable[Revision], operations: Iterable[ModelOperation]
) -> list[dict[str, Any]]:
    """Return revisions, and begin and end of operations, in one order of time, newest first."""
    told = list(revisions)
    found = [
        (one.at_unix_ms, {"revision": row["revision"], "operation": None} | row)
        for one, row in zip(told, views.revisions(told), strict=True)
    ]
    for each in operations:
        if each.ended:
            outcome = f"{each.phase}: {each.why}" if each.why else each.phase
            found.append((each.ended_unix_ms, _entry(each, each.ended_unix_ms, "ended", outcome)))
        found.append((each.began_unix_ms, _entry(each, each.began_unix_ms, "began", None)))
    return [row for _, row in sorted(found, key=lambda each: each[0], reverse=True)]


def _entry(operation: ModelOperation, at: int, what: str, outcome: str | None) -> dict[str, Any]:
    version = f" version {operation.version}" if operation.version else ""
    of = f"{operation.kind} of {operation.model}{version} in pool {operation.pool}"
    return {
        "revision": None,
        "operation": operation.number,
        "at": moment(at),
        "author": operation.author or None,
        "reason": operation.reason or None,
        "changes": [f"operation {operation.number}: {of} {what}"],
        "outcome": outcome,
    }


def parity_rows(answer: GetModelParityResponse) -> list[tuple[object, ...]]:
    """Return the rows of a table of what replicas have."""
    return [
        (
            each.endpoint,
            each.error or each.digest[:SHORT_DIGEST],
            list(each.versions),
            each.platform,
        )
        for each in answer.replicas
    ]


def parity_failure(answer: GetModelParityResponse) -> CliError | None:
    """Return why replicas do not have the same; ``None`` = they do, as far as they have it."""
    if answer.differences:
        return CliError("; ".join(answer.differences))
    if not any(each.digest for each in answer.replicas):
        return CliError("no replica has the model, or none could be asked")
    return None
