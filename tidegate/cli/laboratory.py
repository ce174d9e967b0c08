"""Loading of benchmark modules (``bench/``) from a checkout; the wheel does not contain them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, Final

from tidegate.terminal.errors import CliError

ROOT: Final = Path(__file__).resolve().parents[2]


def load(module: str, subject: str, command: str) -> Any:
    """Import a module of ``bench`` from the checkout that contains this file.

    Args:
        module: Full name of the module, such as ``bench.run``.
        subject: Name of the module's purpose in the error message.
        command: Command that runs it in a checkout, for the error message.

    Raises:
        CliError: This file is not in a checkout, or a package that the module imports is not
            installed.
    """
    if not ROOT.joinpath(*module.split(".")).with_suffix(".py").is_file():
        raise CliError(
            f"the {subject} is not part of the package: run it from a checkout with `{command}`"
        )
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise CliError(
            f"{error.name} is missing: pip install -e '.[demo,bench]' in {ROOT}"
        ) from None
