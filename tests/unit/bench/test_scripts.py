"""The scripts that suites run exist."""

from __future__ import annotations

import ast
from pathlib import Path

BENCH = Path(__file__).resolve().parents[3] / "bench"


def test_each_script_of_a_suite_exists() -> None:
    """Each name of a script in a suite is a file below ``bench``."""
    scripts = {
        node.value
        for path in (BENCH / "suites").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.endswith(".py")
        and " " not in node.value
    }
    assert {"workers.py", "cost/exchange.py"} <= scripts
    assert not [name for name in scripts if not any(BENCH.rglob(name))]
    assert not [name for name in scripts - {"bare_picker.py"} if not (BENCH / name).is_file()]
