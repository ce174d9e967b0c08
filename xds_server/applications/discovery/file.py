"""Watch of the fleet file, by polling.

Rules:

1. The file is read when its stamp (inode, size, modification time) is the same in two polls in a
   row, so that no half-written file is used. The file is followed by its name, because editors
   replace it.
2. Each content is reported once; the same text with a new stamp is not reported again.
3. A file that is missing, too large or not UTF-8 is reported once, and again only if the fault
   changes.
4. A text that is refused for a reason that may pass is reported again (``again``).
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
"""Seconds between two polls."""


class FileFault(Exception):  # noqa: N818 - reads as the sentence it is
    """The file cannot be read; the message states the reason and the remedy."""


class Stamp(NamedTuple):
    """Attributes of a file that differ after any change."""

    inode: int
    size: int
    changed_ns: int


def stamp_of(path: Path) -> Stamp | None:
    """Return the file's stamp; ``None`` if the file is missing or inaccessible."""
    try:
        found = path.stat()
    except OSError:
        return None
    return Stamp(found.st_ino, found.st_size, found.st_mtime_ns)


def read_text(path: Path) -> str:
    """Return the file's text.

    Raises:
        FileFault: It is missing, unreadable, too large or not UTF-8.
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
        raise FileFault(f"{path}: byte {error.start} is not UTF-8; save it as UTF-8") from None


class FileWatch:
    """Reports each change of the file; see the module's rules.

    Args:
        path: The file.
        on_text: Called with each new text.
        on_fault: Called with the reason if the file cannot be read.
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
        self._again = 0
        """Polls until the file is reported once more; 0 = it is not."""

    def again(self, polls: int) -> None:
        """Report the file once more after this many polls, unless it changes before."""
        self._again = polls

    def known(self, text: str) -> None:
        """Treat ``text`` as reported already."""
        self._last_hash = text_hash(text)

    async def look(self) -> None:
        """Poll once; report the file if it has changed and is stable."""
        stamp = stamp_of(self._path)
        if self._again:
            self._again -= 1
            if not self._again:
                self._taken = self._last_hash = None
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
            return  # written while it was read; a later poll will find it stable
        self._taken, self._last_fault = stamp, None
        digest = text_hash(text)
        if digest != self._last_hash:
            self._last_hash, self._again = digest, 0
            await self._on_text(text)

    async def run(self, interval_s: float = INTERVAL_S) -> None:
        """Poll every ``interval_s`` seconds until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(interval_s)
