"""Watches the fleet file.

Laws:

1. The file is read when its stamp (inode, size, time of change) was the same at two looks in a
   row, so a half-written file is not taken for a whole one; editors that replace the file are
   followed by its name.
2. Each content is handed over once; the same text under a new stamp is not handed over again.
3. A file that is missing, too large or no UTF-8 is told once, and again only if that changes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from xds_server.fleet.document import MAX_BYTES
from xds_server.fleet.revision import text_hash

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

INTERVAL_S = 0.2


class FileFault(Exception):  # noqa: N818 - reads as the sentence it is
    """The file cannot be read; the text says why and what to do."""


class Stamp(NamedTuple):
    """What changes whenever a file does."""

    inode: int
    size: int
    changed_ns: int


def stamp_of(path: Path) -> Stamp | None:
    """Return the file's stamp, ``None`` where there is no file to look at."""
    try:
        found = path.stat()
    except OSError:
        return None
    return Stamp(found.st_ino, found.st_size, found.st_mtime_ns)


def read_text(path: Path) -> str:
    """Return the file's text.

    Raises:
        FileFault: It is missing, unreadable, too large or no UTF-8.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise FileFault(f"{path}: no such file; name one with --fleet") from None
    except OSError as error:
        raise FileFault(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise FileFault(f"{path}: larger than {MAX_BYTES // 2**20} MiB; split the fleet")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFault(f"{path}: byte {error.start} is no UTF-8; save it as UTF-8") from None


class FileWatch:
    """Hands the file's text over whenever it has changed.

    Args:
        path: The file.
        on_text: Takes a new text.
        on_fault: Takes the reason why the file cannot be read.
    """

    def __init__(
        self,
        path: Path,
        on_text: Callable[[str], Awaitable[None]],
        on_fault: Callable[[str], None],
    ) -> None:
        self._path = path
        self._on_text = on_text
        self._on_fault = on_fault
        self._seen: Stamp | None = None
        self._taken: Stamp | None = None
        self._last_hash: str | None = None
        self._last_fault: str | None = None

    def known(self, text: str) -> None:
        """Take ``text`` as handed over already."""
        self._last_hash = text_hash(text)

    async def look(self) -> None:
        """Look once; hand over what has changed and settled."""
        stamp = stamp_of(self._path)
        settled = stamp == self._seen
        self._seen = stamp
        if not settled or (stamp is not None and stamp == self._taken):
            return
        try:
            text = read_text(self._path)
        except FileFault as fault:
            self._taken, self._last_hash = stamp, None
            if str(fault) != self._last_fault:
                self._last_fault = str(fault)
                self._on_fault(str(fault))
            return
        if stamp_of(self._path) != stamp:
            return  # written while it was read; the next looks will see it settle
        self._taken, self._last_fault = stamp, None
        digest = text_hash(text)
        if digest != self._last_hash:
            self._last_hash = digest
            await self._on_text(text)

    async def run(self, interval_s: float = INTERVAL_S) -> None:
        """Look again and again until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(interval_s)
