"""The line that a call leaves in the audit trail. Pure.

Rules:

1. A line says who called what, with which role and how it ended. Of the arguments it has names,
   numbers and the names of pools, replicas and models; of other texts their length alone, of a
   fleet also its hash.
2. A line has at most ``MAX_LINE_CHARS``. What is longer loses its arguments.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from xds_server.admin.access.caller import Caller

MAX_LINE_CHARS: Final = 4096
MAX_TEXT_CHARS: Final = 256
MAX_ENTRIES: Final = 32
_SHOWN_TEXTS: Final = frozenset({"pool", "endpoint", "model", "version"})


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call that has ended."""

    unix_ms: int
    caller: Caller
    call: str
    """Its name, without that of the service."""
    verdict: str
    """``OK`` or the name of its status."""
    elapsed_ms: float
    arguments: Mapping[str, Any]
    revision: int | None = None
    """The revision that it made or left in force; ``None`` = it is no change, or has failed."""
    changes: bool = False
    """It was allowed and is one that changes something."""

    def line(self) -> str:
        """Return it as a line of JSON, without the end of the line."""
        at = datetime.fromtimestamp(self.unix_ms / 1000, UTC).isoformat(timespec="milliseconds")
        told: dict[str, Any] = {
            "at": at.replace("+00:00", "Z"),
            "peer": self.caller.address[:MAX_TEXT_CHARS],
            "identity": self.caller.identity[:MAX_TEXT_CHARS],
            "by": self.caller.how,
            "role": self.caller.rank,
            "call": self.call[:MAX_TEXT_CHARS],
            "arguments": dict(self.arguments),
            "verdict": self.verdict,
            "ms": round(self.elapsed_ms, 1),
        }
        if self.revision is not None:
            told["revision"] = self.revision
        line = json.dumps(told, separators=(",", ":"))
        if len(line) > MAX_LINE_CHARS:
            told["arguments"] = {}
            line = json.dumps(told, separators=(",", ":"))
        return line


def arguments_of(request: Any) -> dict[str, Any]:
    """Return what a line tells of a request."""
    found: dict[str, Any] = {}
    for field, value in request.ListFields():
        if field.name == "options":
            found.update({key: True for key in ("dry_run", "wait") if getattr(value, key, False)})
        else:
            found[field.name] = _told(field.name, value)
    return found


def _told(name: str, value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    if name in _SHOWN_TEXTS:
        return str(value)[:MAX_TEXT_CHARS]
    if isinstance(value, str):
        digest = hashlib.sha256(value.encode(errors="replace")).hexdigest()
        length = f"{len(value)} characters"
        return f"{length}, sha256 {digest}" if name == "fleet" else length
    if isinstance(value, Mapping):
        entries = [(str(key)[:MAX_TEXT_CHARS], value[key]) for key in list(value)[:MAX_ENTRIES]]
        return {key: each for key, each in entries if isinstance(each, bool | int | float)}
    return f"{len(value)} entries" if isinstance(value, Sequence) else "given"
