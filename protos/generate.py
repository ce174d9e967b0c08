"""Regenerate the protobuf code that is committed beside the schemas.

``python -m protos.generate`` writes it; ``--check`` writes into a temporary folder and fails,
naming the files, when the committed code differs. Needs the ``dev`` extra.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_ROOT = _PACKAGE.parent


def _generate(destination: Path) -> list[Path]:
    schemas = sorted(path.relative_to(_ROOT) for path in _PACKAGE.rglob("*.proto"))
    services = [path for path in schemas if "\nservice " in (_ROOT / path).read_text()]
    scripts = Path(sys.executable).parent
    common = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I.",
        f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
        f"--mypy_out={destination}",
    ]
    subprocess.run(  # noqa: S603 - fixed arguments, no shell
        [*common, f"--python_out={destination}", *map(str, schemas)], cwd=_ROOT, check=True
    )
    subprocess.run(  # noqa: S603 - fixed arguments, no shell
        [
            *common,
            f"--grpc_python_out={destination}",
            f"--mypy_grpc_out={destination}",
            *map(str, services),
        ],
        cwd=_ROOT,
        check=True,
    )
    return sorted(
        path.relative_to(destination)
        for pattern in ("*_pb2*.py", "*_pb2*.pyi")
        for path in (destination / "protos").rglob(pattern)
    )


def main() -> int:
    """Write the code, or with ``--check`` compare it; return the process's exit code."""
    if "--check" not in sys.argv[1:]:
        _generate(_ROOT)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        stale = [
            str(path)
            for path in _generate(fresh)
            if not (_ROOT / path).exists()
            or (_ROOT / path).read_bytes() != (fresh / path).read_bytes()
        ]
    if stale:
        print("Generated code is stale; run `make protos`:", *stale, sep="\n  ")  # noqa: T201 - a command line
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
