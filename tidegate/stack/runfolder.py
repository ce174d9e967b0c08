"""Run folders: where one run of the stack keeps its configuration, logs and links.

Laws:

* Its path has no space: Triton starts its Python stub through an unquoted shell line, so models
  and backends are reached through links in here, wherever the checkout lies.
* It is ours alone: the parent folder belongs to this user and nobody else may enter it.
* The newest ``KEEP`` folders stay for reading logs; older ones go when a new one is made, except
  those whose run still lives (it holds a lock).
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
"""How many run folders of this user stay on disk."""

_LOCK = ".lock"


class RunFolder:
    """A fresh folder; closing it keeps the files and lets later runs remove them."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock

    @classmethod
    def create(cls, parent: Path | None = None) -> Self:
        """Make a fresh folder below ``parent`` (by default one in the temporary directory).

        Raises:
            OSError: the parent cannot be made or belongs to someone else.
            ValueError: ``parent`` has a space in its path.
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
        """The folder of the children's logs."""
        return self.path / "logs"

    def link(self, name: str, target: Path) -> Path:
        """Make ``name`` in this folder a link to ``target`` and return its path."""
        link = self.path / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target.resolve())
        return link

    def write(self, name: str, text: str) -> Path:
        """Write a file at once, so that a watcher never sees half of it; return its path."""
        path = self.path / name
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
        return path

    def close(self) -> None:
        """Give up the folder; its files stay."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def default_parent() -> Path:
    """Return this user's folder of runs; below /tmp where ``TMPDIR`` has a space."""
    temporary = tempfile.gettempdir()
    root = Path("/tmp" if any(map(str.isspace, temporary)) else temporary)  # noqa: S108 - made private
    return root / f"tidegate-{os.getuid()}"


def is_live(run: Path) -> bool:
    """Tell whether the run of this folder still holds it."""
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
        raise ValueError(f"{str(parent)!r} has a space; Triton's Python models need a path without")
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = parent.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(f"{parent} belongs to someone else; remove it or set TMPDIR")
    parent.chmod(0o700)
    return parent


def _prune(base: Path) -> None:
    found = []
    for path in base.glob("run-*"):
        # A run that begins at the same time may have removed it.
        with contextlib.suppress(FileNotFoundError):
            found.append((path.stat().st_mtime, path))
    for _, path in sorted(found, reverse=True)[KEEP - 1 :]:
        if not is_live(path):
            shutil.rmtree(path, ignore_errors=True)
