"""Finished runs on disk, so that a long measurement can be stopped and gone on with.

Rules:

1. A journal holds runs of one set of conditions: code, packages, machine and parameters. Other
   conditions have a file of their own, so runs that differ in them never meet in a table, and a
   change of code takes nothing away.
2. A run is known by its key and is written once, when it is finished, as one line that is on disk
   before the next run starts.
3. A line that was cut off is passed over.
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
"""What runs."""
SHOWING: Final = ("bench/report", "tidegate/cli")
"""What of it only shows results."""
_DIGITS: Final = 10

Key = tuple[Any, ...]


def code_digest(root: Path = ROOT) -> str:
    """Return a digest of the code and the traces: documentation and tests may differ."""
    shown = tuple(root / each for each in SHOWING)
    return digest(
        path
        for folder in CODE
        for pattern in ("*.py", "*.csv", "*.jsonl")
        for path in (root / folder).rglob(pattern)
        if not any(path.is_relative_to(each) for each in shown)
    )


class Journal:
    """The finished runs of a suite under some conditions.

    Args:
        folder: Where the file is or will be.
        suite: The first word of its name.
        conditions: What all its runs share; ready for JSON.
        keys: The columns that name a run.
        fresh: Begin anew: runs under the same conditions are dropped.

    Raises:
        OSError: It cannot be read or written.
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
        told = orjson.dumps(conditions, option=orjson.OPT_SORT_KEYS)
        self.path = folder / f"{suite}-{_short(told)}.jsonl"
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
        """Return all finished runs in the order in which they ended."""
        return list(self._rows.values())

    def __contains__(self, key: Key) -> bool:
        """Tell whether a run is there."""
        return key in self._rows

    def add(self, row: dict[str, Any]) -> None:
        """Keep a finished run; returns when it is on disk."""
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
