"""Run folders: configuration, logs and links of one run of the stack.

Rules:

1. The path contains no space, because Triton starts its Python stub through an unquoted shell
   command. Models and backends are therefore reached through links in the run folder, wherever
   the checkout is.
2. The parent folder belongs to this user and has mode 0700.
3. The newest ``KEEP`` folders stay for their logs. Creating a folder removes older ones, except
   those of running stacks, which hold a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import Self

KEEP = 8
"""Number of run folders of this user that stay on disk."""

_LOCK = ".lock"


class RunFolder:
    """A new folder; ``close`` keeps the files and allows later runs to remove them."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock

    @classmethod
    def create(cls, parent: Path | None = None) -> Self:
        """Create a folder below ``parent`` (default: one in the temporary directory).

        Raises:
            OSError: The parent cannot be created or belongs to another user.
            ValueError: The path of ``parent`` contains a space.
        """
        base = _private(parent or default_parent())
        _prune(base)
        path = Path(tempfile.mkdtemp(prefix=time.strftime("run-%Y%m%d-%H%M%S-"), dir=base))
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
        (path / "logs").mkdir()
        return cls(path, lock)

    @property
    def logs(self) -> Path:
        """Folder of the children's logs."""
        return self.path / "logs"

    def link(self, name: str, target: Path) -> Path:
        """Create the link ``name`` to ``target`` in this folder and return its path."""
        link = self.path / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target.resolve())
        return link

    def write(self, name: str, text: str) -> Path:
        """Write a file atomically, so that watchers never read a partial file; return its path."""
        path = self.path / name
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
        return path

    def close(self) -> None:
        """Release the lock; the files stay."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def default_parent() -> Path:
    """Return this user's folder of runs; it is below /tmp if ``TMPDIR`` contains a space."""
    temporary = tempfile.gettempdir()
    root = Path("/tmp" if any(map(str.isspace, temporary)) else temporary)  # noqa: S108 - made private
    return root / f"tidegate-{os.getuid()}"


def is_live(run: Path) -> bool:
    """Return whether a running stack holds the lock of this folder."""
    try:
        lock = os.open(run / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _private(parent: Path) -> Path:
    if any(map(str.isspace, str(parent))):
        raise ValueError(f"{str(parent)!r} has a space; Triton's Python models cannot run there")
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = parent.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(f"{parent} belongs to another user; remove it or set TMPDIR")
    parent.chmod(0o700)
    return parent


def _prune(base: Path) -> None:
    found = []
    for path in base.glob("run-*"):
        # A run that starts at the same time may have removed it.
        with contextlib.suppress(FileNotFoundError):
            found.append((path.stat().st_mtime, path))
    for _, path in sorted(found, reverse=True)[KEEP - 1 :]:
        if not is_live(path):
            shutil.rmtree(path, ignore_errors=True)
