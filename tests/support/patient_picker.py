"""A picker whose queues may be long for a minute, for tests in which many requests wait at once.

A queue that has stood for a second is kept short: what comes then is refused. On a busy machine the
requests of a burst take longer than that to come.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

from ext_proc.routing.queue import line
from tidegate.stack.processes.spawning import service_environment

STANDING_S = 60.0


def environment() -> dict[str, str]:
    """Return the environment of such a picker."""
    env = service_environment()
    return {**env, "PYTHONPATH": f"{env['PYTHONPATH']}{os.pathsep}{Path(__file__).parents[1]}"}


if __name__ == "__main__":
    queues: Any = line
    queues.STANDING_S = STANDING_S
    runpy.run_module("ext_proc", run_name="__main__", alter_sys=True)
