"""Finds the Pythons for which ``make dist`` builds and tries a compiled wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROVEN: Final = ("3.11", "3.12")
"""Versions that have wheels of all that the trial runs, Triton included."""

_ASK: Final = "import sys; print('.'.join(map(str, sys.version_info[:3])), sys.executable)"


class Python(NamedTuple):
    """An interpreter that runs."""

    path: Path
    full: str
    """Its version, for example ``3.11.7``."""

    @property
    def version(self) -> str:
        """Return major and minor version."""
        return self.full.rpartition(".")[0]


class NoPythonError(RuntimeError):
    """An interpreter that was asked for does not run, or none was found."""


def look(program: str) -> Python | None:
    """Return the interpreter behind a name or path; ``None`` if it does not run."""
    found = shutil.which(program)
    if found is None:
        return None
    # A shim of pyenv exists for each version that is installed, but runs only the chosen ones.
    done = subprocess.run([found, "-I", "-c", _ASK], capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        return None
    full, _, path = done.stdout.strip().partition(" ")
    return Python(Path(path), full)


def chosen(asked: Sequence[str]) -> list[Python]:
    """Return the interpreters to build for.

    Args:
        asked: Names or paths; empty means each of ``PROVEN`` on the PATH or among pyenv's.

    Raises:
        NoPythonError: One that was asked for does not run or is of an unproven version, or there
            is none.
    """
    found: dict[str, Python] = {}
    for program in asked:
        python = look(program)
        if python is None:
            raise NoPythonError(f"{program} does not run")
        if python.version not in PROVEN:
            raise NoPythonError(
                f"{program} is Python {python.full}, for which the demo has no wheels, so its "
                f"wheel cannot be tried; name Pythons {' or '.join(PROVEN)}"
            )
        found[python.version] = python
    if not asked:
        for version in PROVEN:
            first = next(filter(None, map(look, _places(version))), None)
            if first is not None:
                found[version] = first
    if not found:
        raise NoPythonError(f"there is no Python {' or '.join(PROVEN)} on the PATH; set PYTHONS")
    return list(found.values())


def _places(version: str) -> Iterator[str]:
    yield f"python{version}"
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for folder in sorted((home / "versions").glob(f"{version}.*")):
        yield str(folder / "bin" / f"python{version}")
