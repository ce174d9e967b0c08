"""The environment in which our services and load processes run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
"""Where the code is that this process runs."""


def service_environment(installed: Path | None = None) -> dict[str, str]:
    """Return the environment of our services: ours, with our code found from any folder.

    Args:
        installed: Another installation of the same code, such as ``build/compiled``, whose modules
            are to be taken; by default those that run here.
    """
    first = ROOT if installed is None else installed
    path = os.pathsep.join(part for part in (str(first), os.environ.get("PYTHONPATH", "")) if part)
    made = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    # Else `python -m` looks into the current folder before it looks there.
    return made if installed is None else {**made, "PYTHONSAFEPATH": "1"}
