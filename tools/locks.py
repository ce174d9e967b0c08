"""Writes the lock files of ``requirements/``, one per Python: ``make lock``.

A lock names a version of each package that any extra of ``pyproject.toml`` or the build needs, and
the hashes of all files of that version. uv resolves for each Python on Linux, so no other
interpreter is needed; it keeps the versions of the lock that is there, unless ``--upgrade`` or
``--upgrade-package NAME`` is passed on (``make lock ARGS=--upgrade``). Locks name no package index:
who installs chooses it.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from typing import TYPE_CHECKING, Final

from tools.environment import LOCKED, ROOT, lock_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

UV: Final = "uv>=0.9,<1"
PLATFORM: Final = "x86_64-manylinux_2_35"
"""The least platform on which Envoy and Triton have wheels; hashes cover the others too."""
EDITABLE: Final = "editables~=0.3"
"""What hatchling needs beyond ``build-system.requires`` to install a checkout in place."""


def build_requirements(root: Path = ROOT) -> list[str]:
    """Return what pip needs to build the project without an environment of its own."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    return [*project["build-system"]["requires"], EDITABLE]


def command(python: str, extra: Sequence[str] = ()) -> list[str]:
    """Return the arguments of ``uv``; it reads the build's requirements from standard input."""
    return [
        *("pip", "compile", "--quiet", "--generate-hashes", "--all-extras", "--no-annotate"),
        *("--python-version", python, "--python-platform", PLATFORM),
        *("--no-emit-index-url", "--no-emit-find-links", "--no-config"),
        *("--custom-compile-command", "make lock"),
        *("--output-file", str(lock_of(python).relative_to(ROOT))),
        *extra,
        *("pyproject.toml", "-"),
    ]


def main(extra: Sequence[str]) -> int:
    """Write the lock of each Python; return uv's exit status."""
    folder = ROOT / "build" / "lock"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", UV], check=True)  # noqa: S603
    lock_of(LOCKED[0]).parent.mkdir(exist_ok=True)
    for version in LOCKED:
        done = subprocess.run(  # noqa: S603
            [folder / "bin" / "uv", *command(version, extra)],
            cwd=ROOT,
            input="\n".join(build_requirements()),
            text=True,
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
