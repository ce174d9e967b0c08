"""Stored results, so that an interrupted suite resumes.

Rules:

1. A cell contains the metrics of one run under a key: a digest of all inputs of the run, including
   the code. Changed code has other keys, so stale results are never shown.
2. The digest of a policy of the picker covers ``ext_proc/routing``; results of other policies do
   not depend on it and stay valid when it changes.
3. The file is append-only, one line per cell. Truncated lines and lines that this version cannot
   parse are skipped.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import bench.simulate
import ext_proc.routing
from bench.engine import FOLDER as ENGINE_FOLDER
from bench.simulate.measure import RunMetrics
from bench.simulate.schedulers import production

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.simulate.scenario import Scenario
    from bench.simulate.suite.plan import TrafficSource

SHOWING: Final = frozenset({"command.py", "page.py", "plots.py", "report.py", "suite"})
"""Modules of the simulator that only present results."""
_METRICS: Final = frozenset(field.name for field in fields(RunMetrics))


def digest(paths: Iterable[Path]) -> str:
    """Return one digest of the names and contents of files."""
    made = blake2b(digest_size=12)
    for path in sorted(paths):
        made.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return made.hexdigest()


def simulator_digest() -> str:
    """Return the digest of the code that determines the results of the simulator's own policies.

    It covers the simulator, without ``SHOWING``, and the engine.
    """
    root, apart = Path(bench.simulate.__file__).parent, Path(production.__file__)
    simulator = [
        path
        for path in root.rglob("*.py")
        if path.relative_to(root).parts[0] not in SHOWING and path != apart
    ]
    return digest([*simulator, *ENGINE_FOLDER.rglob("*.py")])


def router_digest() -> str:
    """Return the digest of the picker's routing code and of the adapter that calls it."""
    return digest(
        [*Path(ext_proc.routing.__file__).parent.rglob("*.py"), Path(production.__file__)]
    )


def key(
    code: str,
    traffic: TrafficSource,
    data: str,
    scenario: Scenario,
    **run: str | float | None,
) -> str:
    """Return the key of a cell.

    Args:
        code: Digest of the code.
        traffic: Source of the jobs.
        data: Digest of the trace file; empty for a generator.
        scenario: The fleet.
        run: Policy, seed, rate and other parameters.
    """
    whole = [code, asdict(traffic), data, asdict(scenario), sorted(run.items())]
    text = json.dumps(whole, sort_keys=True)
    return blake2b(text.encode(), digest_size=12).hexdigest()


class Store:
    """Cells in a file.

    Args:
        path: Path of the file; created with the first cell.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cells: dict[str, Any] = {}
        for line in path.read_text("utf-8").splitlines() if path.exists() else ():
            try:
                row = json.loads(line)
                self._cells[row["key"]] = row["value"]
            except (ValueError, TypeError, KeyError):
                continue

    def __len__(self) -> int:
        return len(self._cells)

    def metrics(self, cell: str) -> RunMetrics | None:
        """Return the metrics of a run, or ``None`` if they are not stored."""
        value = self._cells.get(cell)
        if not isinstance(value, dict) or value.keys() != _METRICS:
            return None
        return RunMetrics(**value)

    def number(self, cell: str) -> float | None:
        """Return a stored number, or ``None``."""
        value = self._cells.get(cell)
        return value if isinstance(value, float) else None

    def keep(self, cell: str, value: RunMetrics | float) -> None:
        """Store the metrics of a run, or one number, immediately.

        Raises:
            OSError: The file cannot be written.
        """
        plain = value.as_dict() if isinstance(value, RunMetrics) else value
        self._cells[cell] = plain
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+b") as file:
            # Terminate a truncated last line, so that it does not corrupt this one.
            end = file.seek(0, 2)
            if end:
                file.seek(end - 1)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(json.dumps({"key": cell, "value": plain}).encode() + b"\n")
