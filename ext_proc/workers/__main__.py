"""``python -m ext_proc.workers``: one worker, started only by the parent.

Its arguments are the workers' folder, its number, the number of workers, and its settings as JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path

import uvloop

from ext_proc.app import run_picker
from ext_proc.settings import PickerSettings
from ext_proc.workers.bus import WorkerPlace


def main() -> int:
    """Run the worker; return the exit code."""
    folder, number, count, settings = sys.argv[1:]
    place = WorkerPlace(Path(folder), int(number), int(count))
    return uvloop.run(run_picker(PickerSettings.model_validate_json(settings), place))


if __name__ == "__main__":
    sys.exit(main())
