"""``make dist``: the sdist, the pure wheel and compiled wheels in ``dist/``, each wheel tried.

``python -m tools.dist`` builds the sdist of this checkout and all wheels from that sdist: the pure
one, and with mypyc a compiled one for each Python of ``tools/pythons.py``, repaired by auditwheel
so that its tag names the oldest glibc it runs on. Then it tries each wheel (``tools/trial.py``),
looks which one pip prefers, and prints a table. Logs are in ``build/dist``.

The exit code is 0 only if every wheel passed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tools.pythons import NoPythonError, chosen
from tools.steps import StepError, Steps
from tools.trial import Result, attempt, copy_tests
from tools.wheels import Builder, content, foreign

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.pythons import Python

ROOT = Path(__file__).resolve().parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Build and try everything; return the exit code."""
    parser = argparse.ArgumentParser(prog="make dist", description=__doc__.splitlines()[0])
    parser.add_argument("pythons", nargs="*", help="interpreters; default: 3.11 and 3.12, if there")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the files go")
    parser.add_argument("--build-only", action="store_true", help="do not try the wheels")
    options = parser.parse_args(argv)
    steps = Steps(ROOT / "build" / "dist")
    try:
        pythons = chosen(options.pythons)
        steps.say(f"for Python {', '.join(python.full for python in pythons)}")
        with tempfile.TemporaryDirectory(prefix="tidegate-dist-") as folder:
            work = Path(folder)
            made = build(steps, pythons, options.out, work)
            preferred(steps, pythons, options.out)
            results = {}
            if not options.build_only:
                tests = copy_tests(ROOT, work / "tests")
                for wheel, python in made:
                    trial = work / f"try-{wheel.stem}"
                    results[wheel] = attempt(steps, wheel, python, tests, trial)
    except (NoPythonError, StepError) as error:
        sys.stderr.write(f"make dist: {error}\n")
        return 1
    sys.stdout.write(table([wheel for wheel, _ in made], results))
    good = all(result.tests_pass and result.demo_holds for result in results.values())
    return 0 if good else 1


def build(
    steps: Steps, pythons: Sequence[Python], out: Path, work: Path
) -> list[tuple[Path, Python]]:
    """Build everything into ``out``, emptied of earlier builds; return wheels and their Pythons.

    Raises:
        StepError: A build failed, or a wheel holds what is not the product's.
    """
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("tidegate-*.whl"), *out.glob("tidegate-*.tar.gz")):
        old.unlink()
    made = []
    sdist: Path | None = None
    for python in pythons:
        folder = work / f"build-{python.version}"
        folder.mkdir()
        builder = Builder(steps, python, folder)
        if sdist is None:
            sdist = builder.sdist(ROOT, out)
            made.append((builder.wheel(sdist, out, compiled=False), python))
        made.append((builder.wheel(sdist, out, compiled=True), python))
        shutil.rmtree(folder)
    for wheel, _ in made:
        alien = foreign(wheel, ROOT)
        if alien:
            raise StepError(f"{wheel.name} holds {', '.join(alien[:5])}")
    return made


def preferred(steps: Steps, pythons: Sequence[Python], index: Path) -> None:
    """Check that pip, with all wheels in one index, takes the compiled one for each Python.

    Raises:
        StepError: It takes another.
    """
    for python in pythons:
        command = (
            *(python.path, "-m", "pip", "install", "--dry-run", "--ignore-installed", "-q"),
            *("--no-deps", "--no-index", "--find-links", index, "--report", "-", "tidegate"),
        )
        said = steps.run(f"pip's choice {python.version}", command, cwd=index)
        report = json.loads(said[said.index("{") :])
        url = report["install"][0]["download_info"]["url"]
        name = url.rpartition("/")[2]
        steps.say(f"  pip {report['pip_version']} takes {name}")
        if f"-cp{python.version.replace('.', '')}-" not in name:
            raise StepError(f"Python {python.version}: pip takes {name}, not the compiled wheel")


def table(wheels: Sequence[Path], results: dict[Path, Result]) -> str:
    """Lay out what was built and what the trials found."""
    rows = [
        (
            "wheel",
            "tag",
            "size",
            "unpacked",
            "with dependencies",
            "modules compiled",
            "tests",
            "demo",
        )
    ]
    for wheel in wheels:
        what, result = content(wheel), results.get(wheel)
        rows.append(
            (
                "compiled" if what.libraries else "pure",
                what.tag,
                _mb(what.size),
                _mb(what.unpacked),
                _mb(result.installed) if result else "-",
                # One library holds the code of all modules; it is no module.
                str(max(what.libraries - 1, 0)),
                result.tests if result else "not tried",
                result.demo if result else "not tried",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        + "\n"
        for row in rows
    )


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


if __name__ == "__main__":
    sys.exit(main())
