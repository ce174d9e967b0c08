"""Compilation of the picker with mypyc: ``TIDEGATE_COMPILE=1 pip install .`` (``hatch_build.py``).

mypyc compiles the modules on the path of a request to C, guided by their type annotations. The
same source runs uncompiled.

Rules:

1. The checkout is read-only. Sources are copied to a work folder and compiled there.
2. Modules with public dataclasses are not compiled: mypyc evaluates their annotations at import,
   and orjson cannot serialize compiled dataclasses.
3. The annotations of named tuples are quoted in the copy, because mypyc evaluates them in spite
   of ``from __future__ import annotations``.
4. Compiled code binds its own constants and methods early, so a test cannot replace them.
5. Modules with coroutines are not compiled: builds with mypy 2.4.1 crashed in the tests of the
   libnghttp2 transport, in some builds of the same source and not in others.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PACKAGES: Final = ("ext_proc", "tidegate_api", "tidegate_common")
"""Packages that are copied: the compiled modules and all their imports from the project."""

ON_THE_WAY: Final = (
    "ext_proc/routing/**/*.py",
    "ext_proc/exchange/*.py",
    "ext_proc/requests/**/*.py",
    "ext_proc/blame/*.py",
    "ext_proc/feedback/attempts.py",
    "ext_proc/feedback/entries.py",
    "ext_proc/feedback/fold.py",
    "ext_proc/feedback/wire.py",
    "ext_proc/server/h2/*.py",
    "ext_proc/observability/traffic.py",
    "ext_proc/server/stream.py",
    "ext_proc/server/wire.py",
    "ext_proc/workers/account.py",
    "ext_proc/workers/decode.py",
    "ext_proc/workers/encode.py",
    "ext_proc/workers/messages.py",
    "tidegate_api/names.py",
)
"""Modules on the path of a request and its log entry, in its worker and the peers."""

LEFT_OUT: Final = frozenset(
    {
        "ext_proc/requests/parsing/cut_text.py",  # a kind of str, which mypyc does not make
        "ext_proc/server/h2/connection.py",  # rule 5
        "ext_proc/server/h2/direct.py",  # rule 5
        "ext_proc/server/h2/host.py",  # rule 5
        "ext_proc/server/h2/server.py",  # rule 5
        "ext_proc/server/h2/stream.py",  # rule 5
        "ext_proc/routing/values/pool.py",  # rule 2
        "ext_proc/routing/values/reading.py",  # rule 2
        "ext_proc/routing/values/refusal.py",  # rule 2
        "ext_proc/routing/values/settings.py",  # rule 2
    }
)

GROUP: Final = "tidegate_picker"
"""Name of the shared library with the code of all modules; each module has a small stub library."""


def chosen(root: Path) -> list[str]:
    """Return the modules to compile, as paths relative to ``root``.

    Raises:
        ValueError: A glob matches no file, or an excluded module is in no glob: a module has
            moved and would silently stay uncompiled.
    """
    matches = {
        glob: {path.relative_to(root).as_posix() for path in root.glob(glob)} for glob in ON_THE_WAY
    }
    found = set().union(*matches.values())
    stale = [glob for glob, paths in matches.items() if not paths] + sorted(LEFT_OUT - found)
    if stale:
        raise ValueError(f"these entries match no module to compile: {', '.join(stale)}")
    return sorted(found - LEFT_OUT)


def quoted(source: str) -> str:
    """Return a module's source with the annotations of its named tuples quoted; lines are kept.

    Raises:
        ValueError: An annotation spans several lines or contains both kinds of quotes.
    """
    lines = source.encode().splitlines(keepends=True)
    for at in _tuple_types(ast.parse(source)):
        line = lines[at.lineno - 1]
        text = line[at.col_offset : at.end_col_offset]
        mark = b"'" if b'"' in text else b'"'
        if at.end_lineno != at.lineno or mark in text:
            raise ValueError(f"line {at.lineno}: an annotation that cannot be quoted")
        lines[at.lineno - 1] = (
            line[: at.col_offset] + mark + text + mark + line[at.end_col_offset :]
        )
    return b"".join(lines).decode()


def _tuple_types(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(
            isinstance(base, ast.Name) and base.id == "NamedTuple" for base in node.bases
        ):
            for each in node.body:
                if isinstance(each, ast.AnnAssign):
                    yield each.annotation


def prepare(root: Path, folder: Path) -> None:
    """Copy the sources from ``root`` into the empty ``folder`` and prepare them for mypyc."""
    for package in PACKAGES:
        shutil.copytree(
            root / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in chosen(folder):
        path = folder / name
        path.write_text(quoted(path.read_text(encoding="utf-8")), encoding="utf-8")


def compile_picker(root: Path, work: Path) -> dict[str, str]:
    """Compile the picker of a checkout.

    Needs a C compiler and Python's headers; takes about seven minutes of CPU.

    Args:
        root: Root of the checkout.
        work: Folder of intermediate files; existing content is removed.

    Returns:
        Path of each built library -> its path relative to the folder of the packages.

    Raises:
        RuntimeError: The compilation failed; the message contains the end of the output of mypyc
            or the C compiler.
    """
    shutil.rmtree(work, ignore_errors=True)
    source, made = work / "source", work / "made"
    prepare(root, source)
    command = (sys.executable, str(Path(__file__).resolve()), str(made), *chosen(source))
    ended = subprocess.run(  # noqa: S603 - ourselves
        command,
        cwd=source,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if ended.returncode != 0:
        said = ended.stdout.decode("utf-8", "replace").strip()[-4000:]
        raise RuntimeError(f"the picker could not be compiled:\n{said}")
    return {str(path): path.relative_to(made).as_posix() for path in sorted(made.rglob("*.so"))}


def is_current(root: Path, folder: Path) -> bool:
    """Return whether ``folder`` (``build/compiled``) was built from the checkout's sources."""
    return bool(list(folder.glob(f"{GROUP}*.so"))) and all(
        (folder / each).is_file() and (folder / each).read_bytes() == (root / each).read_bytes()
        for package in PACKAGES
        for each in (path.relative_to(root) for path in (root / package).rglob("*.py"))
    )


def main(arguments: Sequence[str]) -> None:
    """Compile modules in the current folder; arguments: target folder, then module paths."""
    from mypyc.build import mypycify  # noqa: PLC0415 - installed for compilation only
    from setuptools import setup  # noqa: PLC0415 - same

    made, *paths = arguments
    # The stubs of other packages are not needed, and pip's build environment lacks them.
    flags = ["--config-file=", "--ignore-missing-imports", "--cache-dir=../types"]
    setup(
        name=GROUP,
        packages=[],
        py_modules=[],
        ext_modules=mypycify(
            [*flags, *paths],
            opt_level="2",
            debug_level="0",
            target_dir="../c",
            group_name=GROUP,
        ),
        script_args=[
            *("build_ext", f"--build-lib={made}", "--build-temp=../temporary"),
            f"--parallel={os.cpu_count() or 1}",
        ],
    )


if __name__ == "__main__":
    main(sys.argv[1:])
