"""Hatch's hook: ``TIDEGATE_COMPILE=1 pip install .`` puts the compiled picker into the wheel.

Without that variable, and for an editable install always, the wheel is plain Python.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH = "TIDEGATE_COMPILE"


class Compile(BuildHookInterface):  # type: ignore[type-arg]  # its parameter says nothing here
    """Compiles, where it is asked to."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return what building needs beside hatchling."""
        return ["mypy>=1.15,<3", "setuptools>=77"] if _asked() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files are collected."""
        if version != "standard" or not _asked():
            return
        sys.path.insert(0, self.root)
        from tools.compiling import compile_picker  # noqa: PLC0415 - found from here on

        made = compile_picker(Path(self.root), Path(self.root) / "build" / "compiling")
        build_data["force_include"].update(made)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def _asked() -> bool:
    return os.environ.get(SWITCH, "") not in {"", "0"}
