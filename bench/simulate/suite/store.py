"""Results that are kept, so that a suite that was cut goes on where it was.

Rules:

1. A cell is one run's numbers under a key: a digest of everything that makes the run what it is,
   the code included. Changed code has other keys, so a stale number is never shown.
2. The digest of a policy of the picker covers ``ext_proc/routing``; other rules do not depend on
   it and stay valid when it changes.
3. The file only grows, a line per cell. A line that was cut off is passed over, and so is one
   that this version cannot read.
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
"""What of the simulator only shows results."""
_METRICS: Final = frozenset(field.name for field in fields(RunMetrics))


def digest(paths: Iterable[Path]) -> str:
    """Return one digest of files' names and contents."""
    made = blake2b(digest_size=12)
    for path in sorted(paths):
        made.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return made.hexdigest()


def simulator_digest() -> str:
    """Return the digest of what makes the numbers of a rule that exists only here.

    That is the simulator without what only shows results, and the engine that it runs.
    """
    root, apart = Path(bench.simulate.__file__).parent, Path(production.__file__)
    simulator = [
        path
        for path in root.rglob("*.py")
        if path.relative_to(root).parts[0] not in SHOWING and path != apart
    ]
    return digest([*simulator, *ENGINE_FOLDER.rglob("*.py")])


def router_digest() -> str:
    """Return the digest of the production routing code and what hands simulated jobs to it."""
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
        code: Digest of the code that makes it.
        traffic: Where its jobs come from.
        data: Digest of the trace's file; empty for a generator.
        scenario: The fleet.
        run: Policy, seed, rate and what else differs.
    """
    whole = [code, asdict(traffic), data, asdict(scenario), sorted(run.items())]
    text = json.dumps(whole, sort_keys=True)
    return blake2b(text.encode(), digest_size=12).hexdigest()


class Store:
    """Cells in a file.

    Args:
        path: Made when the first cell is kept.
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
        """Return a run's numbers, ``None`` where it must be run."""
        value = self._cells.get(cell)
        if not isinstance(value, dict) or value.keys() != _METRICS:
            return None
        return RunMetrics(**value)

    def number(self, cell: str) -> float | None:
        """Return a number that was kept."""
        value = self._cells.get(cell)
        return value if isinstance(value, float) else None

    def keep(self, cell: str, value: RunMetrics | float) -> None:
        """Keep a run's numbers, or one number, at once.

        Raises:
            OSError: The file cannot be written.
        """
        plain = value.as_dict() if isinstance(value, RunMetrics) else value
        self._cells[cell] = plain
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+b") as file:
            # A line that was cut off must not swallow this one.
            end = file.seek(0, 2)
            if end:
                file.seek(end - 1)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(json.dumps({"key": cell, "value": plain}).encode() + b"\n")
