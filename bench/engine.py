"""The inference engine that simulator and emulator run: the core of ``models/toy-llm``.

Triton imports that package from its model's folder, so it is on no import path: this module, the
only one of the laboratory that names it, puts the folder there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[1] / "models" / "toy-llm"
if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))

from toyllm.blocks import BlockCache  # noqa: E402 - found from here on
from toyllm.core import Ended, EngineConfig, EngineCore, Task  # noqa: E402 - same

__all__ = ["FOLDER", "BlockCache", "Ended", "EngineConfig", "EngineCore", "Task"]
