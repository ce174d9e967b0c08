"""``python -m ext_proc.workers``: one worker, started only by the parent.

Its arguments are the workers' folder, its number, the number of workers, and its settings as JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from ext_proc.run import run_picker
from ext_proc.settings import PickerSettings
from ext_proc.workers.bus import WorkerPlace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.control.source import PoolSource


def main(arguments: Sequence[str], source: PoolSource | None = None) -> int:
    """Run the worker; return the exit code.

    Args:
        arguments: The worker's arguments.
        source: Where its pools come from; ``None`` = the control server.
    """
    folder, number, count, settings = arguments
    place = WorkerPlace(Path(folder), int(number), int(count))
    return uvloop.run(run_picker(PickerSettings.model_validate_json(settings), place, source))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
