"""``python -m tidegate.picker.worker``: one worker, started only by the parent.

Its arguments are those of ``ext_proc.workers``, the fleet file, the picker's folder, and name
servers.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ext_proc.workers.__main__ import main
from tidegate.picker.run import source_of

WORDS = 5
"""Number of the words before ours, the program's name included."""

if __name__ == "__main__":
    ours, (fleet, folder, *dns) = sys.argv[1:WORDS], sys.argv[WORDS:]
    sys.exit(main(ours, source_of(Path(fleet), Path(folder), dns)))
