"""The audit trail: a line of JSON for each call of the admin API, in files that only grow.

Rules of lines:

1. A line says who called what, with which role and how it ended. Of the arguments it has names,
   numbers and the names of pools, replicas and models; of other texts their length alone, of a
   fleet also its hash.
2. A line has at most ``MAX_LINE_CHARS``. What is longer loses its arguments.

Rules of files:

1. Calls that change something are in one file, which is flushed to disk; all others and what was
   refused in a second one, so that many readers do not displace the record of changes.
2. A line is written before its call is answered, but a call waits ``PATIENCE_S`` at most: a disk
   that hangs or is full keeps no drain from being made.
3. What cannot be written is held, the newest ``MAX_HELD`` lines, logged as an error, and written
   when it can be. ``fault`` says why it cannot. A line of its own says how many were lost.
4. A file that has reached its bound is renamed to ``NAME.1``, that one to ``NAME.2`` and so on;
   ``KEPT`` of them stay.
5. A line that was written in part, by a full disk or an end of the process, is left as it is: the
   next one begins on a new line.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import structlog

if TYPE_CHECKING:
    from pathlib import Path

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


MAX_FILE_BYTES: Final = 8 * 2**20
KEPT: Final = 8
"""Older files of each kind that stay on disk."""
MAX_HELD: Final = 1000
PATIENCE_S: Final = 1.0
RETRY_S: Final = 2.0
"""Seconds between attempts to write what is held."""
CHANGES_NAME: Final = "audit.jsonl"
OTHERS_NAME: Final = "audit-reads.jsonl"

_log = structlog.stdlib.get_logger(__name__)


class AuditFile:
    """One file of lines. Its methods block.

    Args:
        path: The file; made if missing, with mode 0600.
        max_bytes: Size at which it is renamed.
        flushed: Lines outlive the end of the machine, not only that of the process.
    """

    def __init__(
        self, path: Path, max_bytes: int = MAX_FILE_BYTES, *, flushed: bool = False
    ) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._flushed = flushed

    def append(self, lines: list[str]) -> None:
        """Write lines, all of which are in the file when it returns.

        Raises:
            OSError: They were not written, or only a part of them.
        """
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self.path, flags, 0o600)
        try:
            size = os.fstat(file).st_size
            torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
            text = "".join(f"{line}\n" for line in lines)
            rest = memoryview((b"\n" if torn else b"") + text.encode())
            while rest:
                rest = rest[os.write(file, rest) :]
            if self._flushed:
                os.fdatasync(file)
            full = os.fstat(file).st_size >= self._max_bytes
        finally:
            os.close(file)
        if full:
            with contextlib.suppress(OSError):  # else the next append tries it again
                self._rotate()

    def _rotate(self) -> None:
        for number in range(KEPT, 0, -1):
            older = self.path.with_name(f"{self.path.name}.{number}")
            newer = older.with_suffix(f".{number - 1}") if number > 1 else self.path
            with contextlib.suppress(FileNotFoundError):
                newer.replace(older)


class AuditTrail:
    """Writes the record of calls; see the module's rules.

    Args:
        folder: Folder of the files; ``None`` = lines go to the log.
        max_bytes: Size at which a file is renamed.
        patience_s: Longest wait of a call.
    """

    def __init__(
        self,
        folder: Path | None,
        max_bytes: int = MAX_FILE_BYTES,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.fault = ""
        """Why lines cannot be written; empty when they can."""
        self._files = (
            None
            if folder is None
            else {
                True: AuditFile(folder / CHANGES_NAME, max_bytes, flushed=True),
                False: AuditFile(folder / OTHERS_NAME, max_bytes),
            }
        )
        self._patience_s = patience_s
        self._held: deque[tuple[bool, str]] = deque()
        self._lost = 0
        self._turn = asyncio.Lock()
        self._tried = asyncio.Event()
        """Set once the lines that are added now have been written, or could not be."""
        self._writing: asyncio.Task[None] | None = None

    @property
    def unwritten(self) -> int:
        """Number of lines that are not on disk, those that were lost included."""
        return len(self._held) + self._lost

    def add(self, record: CallRecord) -> None:
        """Take the record of a call; ``settle`` writes it."""
        line = record.line()
        if self._files is None:
            told = json.loads(line)
            if record.changes:
                _log.info("admin_call", **told)
            else:
                _log.debug("admin_call", **told)
            return
        self._held.append((record.changes, line))
        if len(self._held) > MAX_HELD:
            self._held.popleft()
            self._lost += 1
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())

    async def settle(self) -> None:
        """Wait until what was added is written, or for ``patience_s``."""
        if self._files is None or self.fault:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                await self._tried.wait()

    async def stop(self) -> None:
        """Write what is held if that is possible now."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s), self._turn:
                if self._writing is not None:
                    self._writing.cancel()  # it does not write: that needs the turn
        if self._held or self._lost:
            last = asyncio.create_task(self._write())
            await asyncio.wait({last}, timeout=self._patience_s)
            last.cancel()

    async def _write_all(self) -> None:
        while self._held:
            if not await self._write():
                await asyncio.sleep(RETRY_S)

    async def _write(self) -> bool:
        """Write what is held; return whether that succeeded."""
        async with self._turn:
            if self._files is None:
                return True
            lines, lost = list(self._held), self._lost
            tried, self._tried = self._tried, asyncio.Event()
            try:
                for changes, file in self._files.items():
                    kind = [line for of, line in lines if of is changes]
                    if changes and lost:
                        kind.insert(0, json.dumps({"lost": lost}))
                    if kind:
                        await asyncio.to_thread(file.append, kind)
                        self._forget(lines, changes=changes)
                        if changes:
                            self._lost -= lost
            except OSError as error:
                self._failed(error)
                return False
            finally:
                tried.set()
            self._written()
            return True

    def _forget(self, lines: list[tuple[bool, str]], *, changes: bool) -> None:
        """Drop written lines; some may have been pushed out meanwhile."""
        done = {id(line) for of, line in lines if of is changes}
        self._held = deque(each for each in self._held if id(each[1]) not in done)

    def _failed(self, error: OSError) -> None:
        fault = f"{error.filename or 'the audit trail'}: {error.strerror}"
        if fault != self.fault:
            self.fault = fault
            _log.error("audit_not_written", error=fault, held=len(self._held))

    def _written(self) -> None:
        if self.fault:
            self.fault = ""
            _log.info("audit_written_again")
