"""Journal of finished runs on disk, so that a long measurement can be interrupted and resumed.

Rules:

1. A journal contains runs of one set of conditions: code, packages, machine and parameters. Other
   conditions have another file, so runs under different conditions never share a table, and a
   change of code deletes nothing.
2. A run is identified by its key and written once, when it finishes, as one line that is on disk
   before the next run starts.
3. A truncated line is skipped.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from bench.simulate.suite.store import digest

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).resolve().parents[1]
CODE: Final = (
    "bench",
    "ext_proc",
    "models",
    "tidegate",
    "tidegate_api",
    "tidegate_common",
    "xds_server",
)
"""Paths of the code that determines results."""
SHOWING: Final = ("bench/report", "tidegate/cli")
"""Paths below ``CODE`` that only present results."""
_DIGITS: Final = 10

Key = tuple[Any, ...]


def code_digest(root: Path = ROOT) -> str:
    """Return a digest of the code and the traces, without documentation and tests."""
    shown = tuple(root / each for each in SHOWING)
    return digest(
        path
        for folder in CODE
        for pattern in ("*.py", "*.csv", "*.jsonl")
        for path in (root / folder).rglob(pattern)
        if not any(path.is_relative_to(each) for each in shown)
    )


class Journal:
    """The finished runs of a suite under one set of conditions.

    Args:
        folder: Folder of the file.
        suite: Prefix of the file name.
        conditions: Conditions of all runs, JSON-serializable.
        keys: Columns that identify a run.
        fresh: Whether to drop stored runs under the same conditions.

    Raises:
        OSError: The file cannot be read or written.
    """

    def __init__(
        self,
        folder: Path,
        suite: str,
        conditions: Mapping[str, Any],
        keys: tuple[str, ...],
        *,
        fresh: bool = False,
    ) -> None:
        encoded = orjson.dumps(conditions, option=orjson.OPT_SORT_KEYS)
        self.path = folder / f"{suite}-{_short(encoded)}.jsonl"
        self.others = sorted(
            path for path in folder.glob(f"{suite}-*.jsonl") if path.name != self.path.name
        )
        """Journals of the same suite under other conditions."""
        self._keys = keys
        self._rows: dict[Key, dict[str, Any]] = {}
        if fresh or not self.path.exists():
            self.path.write_bytes(orjson.dumps({"conditions": conditions}) + b"\n")
        else:
            self._read()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return all finished runs in the order of their ends."""
        return list(self._rows.values())

    def __contains__(self, key: Key) -> bool:
        """Return whether a run is stored."""
        return key in self._rows

    def add(self, row: dict[str, Any]) -> None:
        """Append a finished run and return when it is on disk."""
        with self.path.open("ab") as file:
            file.write(orjson.dumps(row) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._rows[self._key(row)] = row

    def _key(self, row: Mapping[str, Any]) -> Key:
        return tuple(row[key] for key in self._keys)

    def _read(self) -> None:
        data = self.path.read_bytes()
        for line in data.splitlines()[1:]:
            try:
                row = orjson.loads(line)
                self._rows[self._key(row)] = row
            except (orjson.JSONDecodeError, KeyError, TypeError):
                continue
        if data and not data.endswith(b"\n"):
            with self.path.open("ab") as file:
                file.write(b"\n")


def _short(data: bytes) -> str:
    return blake2b(data, digest_size=_DIGITS // 2).hexdigest()
