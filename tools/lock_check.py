"""Whether the lock files satisfy ``pyproject.toml``; ``make check`` runs this, without a network.

Checked of each lock: every requirement of the project, of its extras and of its build that applies
to that Python on Linux is named with a version within the bounds; each package has a hash; no line
is an option of pip or an address, such as that of a package index. What packages require of each
other is uv's business.
"""

from __future__ import annotations

import re
import sys
import tomllib
from typing import TYPE_CHECKING, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.environment import LOCKED, ROOT, lock_of, pins
from tools.locks import build_requirements

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PACKAGE: Final = re.compile(r"^\S+==\S+(?: ; [^\\]+)? \\$")
_HASH: Final = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")


def requirements(root: Path, python: str) -> Iterator[Requirement]:
    """Yield what the project requires on a Python; its references to itself are followed."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    own = canonicalize_name(project["name"])
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    here = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
    }
    for line in [*(line for group in groups for line in group), *build_requirements(root)]:
        one = Requirement(line)
        # All extras are looked at, so a reference to one of them adds nothing.
        if canonicalize_name(one.name) != own and (one.marker is None or one.marker.evaluate(here)):
            yield one


def faults(root: Path = ROOT) -> list[str]:
    """Return what is wrong with the locks, empty where they are as they must be."""
    found = []
    for python in LOCKED:
        lock = lock_of(python, root)
        name = lock.relative_to(root).as_posix()
        if not lock.is_file():
            found.append(f"{name} is missing")
            continue
        text = lock.read_text()
        versions = {canonicalize_name(key): version for key, version in pins(text).items()}
        for one in requirements(root, python):
            version = versions.get(canonicalize_name(one.name))
            if version is None:
                found.append(f"{name} lacks {one}")
            elif not one.specifier.contains(version, prereleases=True):
                found.append(f"{name} has {one.name} {version}, but pyproject.toml says {one}")
        found += [f"{name}:{number}: {fault}" for number, fault in _lines(text)]
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and fault of each line that is not a package, its hash or a comment."""
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#"):
            if "://" in line:
                yield number, "names an address"
        elif _PACKAGE.match(line) is None and _HASH.match(line) is None:
            yield number, f"is neither a package with a hash nor a hash: {line[:60]}"
        elif _PACKAGE.match(before) is not None and _HASH.match(line) is None:
            yield number, "the package before has no hash"
        before = line
    if _PACKAGE.match(before) is not None:
        yield number, "the last package has no hash"


def main() -> int:
    """Print each fault; return 1 where there is one."""
    found = faults()
    for fault in found:
        print(fault, file=sys.stderr)  # noqa: T201 - a program that prints
    if found:
        print("run: make lock", file=sys.stderr)  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
