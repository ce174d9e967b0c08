"""How one of our processes starts another of ours, from whatever folder.

Rules:

1. Children start as ``python -P -m MODULE``: without ``-P`` Python looks for packages in the
   current folder first, and a ``yaml/`` or ``ext_proc/`` that lies there would be run.
2. The folder that holds our packages comes first on ``PYTHONPATH``, so that a child runs the code
   of its parent. Empty entries, which mean the current folder, are dropped.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
"""Where the code is that this process runs."""


def module_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line that runs a module with this Python."""
    return (sys.executable, "-P", "-m", module, *arguments)


def child_environment(first: Path = ROOT) -> dict[str, str]:
    """Return the environment of a child: ours, with our packages first.

    Args:
        first: The folder that holds them.
    """
    rest = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join((str(first), *(part for part in rest if part)))
    return {**os.environ, "PYTHONPATH": path}
