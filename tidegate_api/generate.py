"""Generate the committed protobuf code from the schemas in ``protos/``.

``python -m tidegate_api.generate`` writes it; ``--check`` writes into a temporary folder and fails,
naming the files, when the committed code differs. It needs a checkout and the ``dev`` extra.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_ROOT = _PACKAGE.parent
_SCHEMAS = _ROOT / "protos" / "tidegate"


def _generate(destination: Path) -> list[Path]:
    """Write the code below ``destination`` and return the files as paths below it."""
    schemas = sorted(_SCHEMAS.rglob("*.proto"))
    services = [path for path in schemas if "\nservice " in path.read_text()]
    scripts = Path(sys.executable).parent
    common = [
        sys.executable,
        "-P",
        "-m",
        "grpc_tools.protoc",
        # A virtual folder: the code is importable as `tidegate_api`, wherever the schemas stand.
        f"-I{_PACKAGE.name}={_SCHEMAS}",
        f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
        f"--mypy_out={destination}",
    ]

    def protoc(paths: list[Path], *options: str) -> None:
        names = [f"{_PACKAGE.name}/{path.relative_to(_SCHEMAS).as_posix()}" for path in paths]
        subprocess.run([*common, *options, *names], cwd=_ROOT, check=True)  # noqa: S603 - fixed arguments, no shell

    protoc(schemas, f"--python_out={destination}")
    protoc(services, f"--grpc_python_out={destination}", f"--mypy_grpc_out={destination}")
    return sorted(
        path.relative_to(destination)
        for pattern in ("*_pb2*.py", "*_pb2*.pyi")
        for path in (destination / _PACKAGE.name).rglob(pattern)
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
