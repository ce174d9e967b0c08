"""The inference engine of the simulator and the emulator: the core of ``models/toy-llm``.

Triton imports that package from the model's folder, so it is not on the import path. This module
adds the folder to the path; no other module of ``bench`` imports the package.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[1] / "models" / "toy-llm"
if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))

from toyllm.blocks import BlockCache  # noqa: E402 - importable after the insert
from toyllm.core import Ended, EngineConfig, EngineCore, Task  # noqa: E402 - same

__all__ = ["FOLDER", "BlockCache", "Ended", "EngineConfig", "EngineCore", "Task"]
