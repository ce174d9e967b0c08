"""A copy of a SQLite database that may only be read.

SQLite must lock a database in WAL mode and replay its log to read what is newest. Neither is
possible in a read-only folder, so the database and its log are copied and opened elsewhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Final

_LOCK_START: Final = 0x40000000
_LOCK_BYTES: Final = 512
"""Where SQLite's locks are (``os_unix.c``): the owner of the database has these bytes locked."""


def writable(database: Path) -> bool:
    """Return whether a database may be written, or created if it does not exist."""
    return not database.is_file() or (
        os.access(database.parent, os.W_OK) and os.access(database, os.W_OK)
    )


class Copy:
    """A copy of a database and of its log, in a temporary folder until ``remove``.

    Args:
        database: The database.

    Raises:
        OSError: It cannot be copied.
        sqlite3.OperationalError: Another process of this machine has it locked.
    """

    def __init__(self, database: Path) -> None:
        with database.open("rb") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, _LOCK_BYTES, _LOCK_START)
            except BlockingIOError:
                raise sqlite3.OperationalError("database is locked") from None
            self._made = tempfile.TemporaryDirectory(prefix="tidegate-state-")
            self.folder = Path(self._made.name)
            try:
                for path in database.parent.glob(f"{database.name}*"):
                    shutil.copyfile(path, self.folder / path.name)
            except BaseException:
                self.remove()
                raise

    def remove(self) -> None:
        """Delete the copy; may be called twice."""
        self._made.cleanup()


def copy_into(database: Path, db: sqlite3.Connection) -> None:
    """Copy a database into an empty one in memory.

    Raises:
        OSError: It cannot be copied.
        sqlite3.Error: It is damaged, or another process of this machine has it locked.
    """
    copy = Copy(database)
    try:
        source = sqlite3.connect(copy.folder / database.name, isolation_level=None)
        with contextlib.closing(source):
            source.execute("PRAGMA journal_mode = DELETE")  # one in WAL mode needs a file
            source.backup(db)
    finally:
        copy.remove()
