"""Generate the committed protobuf code from the schemas in ``protos/``.

The gateway's reflection describes services of others by ``services.binpb``: Triton's as
tritonclient has it, gRPC's health, and reflection itself.

``python -m tidegate_api.generate`` writes it; ``--check`` writes into a temporary folder and fails,
naming the files, when the committed code differs. It needs a checkout and the ``dev`` extra.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2
from tritonclient.grpc import model_config_pb2, service_pb2

_PACKAGE = Path(__file__).resolve().parent
_ROOT = _PACKAGE.parent
_SCHEMAS = _ROOT / "protos" / "tidegate"
_REFLECTION = _ROOT / "protos" / "grpc" / "reflection" / "v1" / "reflection.proto"
_SERVICES = Path("gateway", "streams", "services.binpb")


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
    _describe_services(destination / _SERVICES)
    code = (
        path.relative_to(destination)
        for pattern in ("*_pb2*.py", "*_pb2*.pyi")
        for path in (destination / _PACKAGE.name).rglob(pattern)
    )
    return sorted((_SERVICES, *code))


def _describe_services(target: Path) -> None:
    """Write the gateway's ``FileDescriptorSet``: no file comes before those that it needs."""
    made = descriptor_pb2.FileDescriptorSet()
    for module in (health_pb2, model_config_pb2, service_pb2):
        made.file.append(
            descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        )
    text = _REFLECTION.read_text()
    with tempfile.TemporaryDirectory() as folder:
        for version in ("v1", "v1alpha"):
            name = f"grpc/reflection/{version}/reflection.proto"
            source = Path(folder, name)
            source.parent.mkdir(parents=True)
            source.write_text(text.replace("grpc.reflection.v1;", f"grpc.reflection.{version};"))
            compiled = Path(folder, version)
            command = [sys.executable, "-P", "-m", "grpc_tools.protoc", f"-I{folder}"]
            subprocess.run([*command, f"--descriptor_set_out={compiled}", name], check=True)  # noqa: S603 - fixed arguments, no shell
            made.MergeFromString(compiled.read_bytes())
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(made.SerializeToString(deterministic=True))


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
