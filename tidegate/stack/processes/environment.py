"""Environment variables of the services and load processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
"""Root of the code that this process runs."""


def service_environment(installed: Path | None = None) -> dict[str, str]:
    """Return this process's environment, with the project importable from any folder.

    Args:
        installed: Installation of the project to import from, such as ``build/compiled``;
            default: ``ROOT``.
    """
    first = ROOT if installed is None else installed
    path = os.pathsep.join(part for part in (str(first), os.environ.get("PYTHONPATH", "")) if part)
    made = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    # Without it, `python -m` searches the current folder first.
    return made if installed is None else {**made, "PYTHONSAFEPATH": "1"}
