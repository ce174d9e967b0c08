"""Tries a wheel: in an empty environment, outside the checkout, as its users would.

Rules:

1. The environment gets the wheel and what it names, in three steps that are measured apart: the
   core, then the extra ``demo`` (the demo runs), then ``dev`` (the picker's unit tests run).
2. The tests are a copy outside the checkout, beside ``bench/`` and ``models/``, which some of them
   import; a check inside pytest fails unless the picker comes from the environment and is compiled
   exactly if its wheel is.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Final, NamedTuple

from tools.wheels import content

if TYPE_CHECKING:
    from pathlib import Path

    from tools.pythons import Python
    from tools.steps import Steps

COPIED: Final = ("tests", "bench", "models", "pyproject.toml")
TESTS: Final = "tests/unit/ext_proc"

_CHECK: Final = '''"""Fails unless the installed picker is tested."""

import importlib
import os
from pathlib import Path

from ext_proc.compiled import compiled

for _name in ("ext_proc", "tidegate", "tidegate_api", "tidegate_common", "xds_server"):
    _place = Path(importlib.import_module(_name).__file__)
    if not _place.is_relative_to(os.environ["TIDEGATE_INSTALLED"]):
        raise ImportError(f"{_name} is {_place}, which is not the installed one")
if compiled() != bool(int(os.environ["TIDEGATE_COMPILED"])):
    raise ImportError(f"compiled is {compiled()}")
'''


class Result(NamedTuple):
    """What a trial found."""

    installed: int
    """Bytes of the environment's packages with the core installed, without pip."""
    tests: str
    """Pytest's last line."""
    tests_pass: bool
    demo: str
    """The demo's last line."""
    demo_holds: bool


VERDICT: Final = r"(\d+) of (\d+) passed"
"""The last line of ``tidegate demo --exit``."""


def copy_tests(root: Path, folder: Path) -> Path:
    """Copy what the tests need out of a checkout; return the copy's root."""
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(
                source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
            )
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name)
    (folder / "conftest.py").write_text(_CHECK, "utf-8")
    return folder


def attempt(steps: Steps, wheel: Path, python: Python, tests: Path, work: Path) -> Result:
    """Try a wheel with a Python.

    Args:
        steps: Runs the commands.
        wheel: The wheel.
        python: The interpreter.
        tests: The copy of the tests.
        work: A folder that does not exist yet; it is removed at the end.

    Raises:
        StepError: It cannot be installed.
    """
    compiled = content(wheel).libraries > 0
    name = f"{'compiled' if compiled else 'pure'} {python.version}"
    empty = work / "empty"
    empty.mkdir(parents=True)
    steps.run(f"{name} venv", (python.path, "-m", "venv", work / "env"), cwd=empty)
    program = work / "env" / "bin" / "python"
    site = work / "env" / "lib" / f"python{python.version}" / "site-packages"

    def install(extras: str) -> None:
        command = (program, "-m", "pip", "install", "-q", f"{wheel}{extras}")
        steps.run(f"{name} install {extras or 'core'}", command, cwd=empty)

    before = _bytes(site)
    install("")
    installed = _bytes(site) - before
    steps.run(f"{name} help", (work / "env" / "bin" / "tidegate", "--help"), cwd=empty)
    install("[demo]")
    demo = _last_line(
        steps.run(
            f"{name} demo",
            (work / "env" / "bin" / "tidegate", "demo", "--exit"),
            cwd=empty,
            fails=True,
        ),
        VERDICT,
    )
    install("[demo,dev]")
    tested = _last_line(
        steps.run(
            f"{name} tests",
            (program, "-P", "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", TESTS),
            cwd=tests,
            env={
                "PYTHONPATH": str(tests),
                "PYTHONSAFEPATH": "1",
                "TIDEGATE_COMPILED": "1" if compiled else "0",
                "TIDEGATE_INSTALLED": str(site),
            },
            fails=True,
        ),
        r"\d+ (passed|failed|error)",
    )
    shutil.rmtree(work)
    held = re.match(VERDICT, demo)
    return Result(
        installed=installed,
        tests=re.sub(r" in [0-9.]+s.*|=+ ?", "", tested) or "did not run",
        tests_pass=bool(re.search(r"\d+ passed", tested))
        and not re.search(r"\d+ (failed|error)", tested),
        demo=demo.partition(";")[0] or "did not run",
        demo_holds=held is not None and held[1] == held[2],
    )


def _last_line(text: str, pattern: str) -> str:
    lines = [line for line in text.splitlines() if re.search(pattern, line)]
    return lines[-1] if lines else ""


def _bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
