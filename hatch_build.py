"""Build hook of hatch: ``TIDEGATE_COMPILE=1 pip install .`` builds a wheel with compiled modules.

Without that variable, and in an editable install, the wheel is pure Python.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH = "TIDEGATE_COMPILE"


class Compile(BuildHookInterface):  # type: ignore[type-arg]  # the parameter is irrelevant here
    """Compiles the picker if ``TIDEGATE_COMPILE`` is set."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return the build requirements in addition to hatchling."""
        return ["mypy>=1.15,<3", "setuptools>=77"] if _asked() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the picker before hatch collects the files."""
        if version != "standard" or not _asked():
            return
        sys.path.insert(0, self.root)
        from tools.compiling import compile_picker  # noqa: PLC0415 - importable after the insert

        made = compile_picker(Path(self.root), Path(self.root) / "build" / "compiling")
        build_data["force_include"].update(made)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def _asked() -> bool:
    return os.environ.get(SWITCH, "") not in {"", "0"}
