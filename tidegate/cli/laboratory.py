"""Loads the laboratory, the checkout's ``bench/``, by name: the package does not carry it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, Final

from tidegate.terminal.errors import CliError

ROOT: Final = Path(__file__).resolve().parents[2]


def load(module: str, subject: str, command: str) -> Any:
    """Return a module of the laboratory from the checkout that this code runs from.

    Args:
        module: Full name, below ``bench``.
        subject: What the module is, for the error.
        command: What runs it in a checkout, for the error.

    Raises:
        CliError: There is no checkout, or a package that the module imports is not installed.
    """
    if not ROOT.joinpath(*module.split(".")).with_suffix(".py").is_file():
        raise CliError(
            f"the {subject} is not part of the package: run it from a checkout, {command}"
        )
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise CliError(
            f"{error.name} is missing: pip install -e '.[demo,bench]' in {ROOT}"
        ) from None
