"""Installs the checkout in place, with the package versions of a lock file.

``make`` runs this with the Python of a new virtual environment::

    python -m tools.environment dev          # all of the lock, each file checked by its hash
    python -m tools.environment demo bench   # these extras, at the versions that the lock names

Only the extra ``dev`` takes everything, so only there can pip demand a hash of each file. A Python
without a lock file gets what the bounds in ``pyproject.toml`` allow.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parents[1]
LOCKED: Final = ("3.11", "3.12")
"""Pythons with a lock file: those that have wheels of all that the tests run."""
WHOLE: Final = "dev"
"""The extra for which all of the lock is installed."""

_PIN: Final = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)


def lock_of(python: str, root: Path = ROOT) -> Path:
    """Return where the lock file of a Python, for example ``3.11``, stands if there is one."""
    return root / "requirements" / f"ci-{python}.txt"


def pins(text: str) -> dict[str, str]:
    """Return name and version of each package that a lock file names."""
    return dict(_PIN.findall(text))


def steps(extras: Sequence[str], lock: Path, versions: Path) -> list[list[str]]:
    """Return the arguments of the calls of ``pip install`` that make the environment.

    Args:
        extras: Extras of the project.
        lock: The lock file; it need not exist.
        versions: A file of the versions in ``lock``, without hashes.
    """
    checkout = f".[{','.join(extras)}]"
    if not lock.is_file():
        return [["-e", checkout]]
    if WHOLE in extras:
        return [
            # The lock is whole. With dependencies, pip takes a package that is asked for with an
            # extra (coverage[toml]) at its newest version, which has no hash here.
            ["--no-deps", "--require-hashes", "-r", str(lock)],
            ["--no-deps", "--no-build-isolation", "-e", "."],
        ]
    return [["-c", str(versions), "-e", checkout]]


def main(extras: Sequence[str]) -> int:
    """Install the checkout with these extras; return pip's exit status."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    lock = lock_of(python)
    if not lock.is_file():
        print(  # noqa: T201 - a program that prints
            f"Python {python} has no lock file (there are {' and '.join(LOCKED)}): "
            "installing the newest versions that pyproject.toml allows",
            flush=True,
        )
    with tempfile.TemporaryDirectory() as folder:
        versions = Path(folder) / "versions.txt"
        known = pins(lock.read_text()) if lock.is_file() else {}
        versions.write_text("".join(f"{name}=={version}\n" for name, version in known.items()))
        for step in steps(extras, lock, versions):
            # Python compiles what is imported when it is; pip would take 15 s for all files.
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", *step]
            status = subprocess.run(pip, cwd=ROOT, check=False).returncode  # noqa: S603
            if status:
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
