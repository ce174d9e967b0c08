"""A Triton replica as a child process: folders, command line, environment, readiness.

The binaries come from the ``nvidia-pytriton`` wheel, which is not imported: Triton 2.51 for CPUs
with the Python backend.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import sysconfig
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidegate.stack.assets import ExtraMissingError, asset
from tidegate.stack.runfolder import is_live

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tidegate.stack.runfolder import RunFolder

MODELS: Final = ("toy-llm", "vision", "counter")
"""The models of the demo."""
EXIT_TIMEOUT_S: Final = 2
"""``--exit-timeout-secs`` of Triton, which waits for open connections of a proxy's pool at exit."""
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - where Triton's stubs put their regions


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonReplica:
    """Addresses and models of one replica."""

    name: str
    http: str
    """``ip:port``."""
    grpc: str
    """``ip:port``."""
    metrics: str
    """``ip:port``; the page is at ``metrics_url``."""
    variant: str = "stable"
    """Variant of the replica in the ``llm`` pool."""
    models: Mapping[str, Sequence[str]] = field(
        default_factory=lambda: {"toy-llm": ("1",), "vision": ("1",), "counter": ("1",)}
    )
    """Model -> versions that the replica serves."""

    @property
    def http_url(self) -> str:
        """URL of its HTTP port."""
        return f"http://{self.http}"

    @property
    def metrics_url(self) -> str:
        """URL of its Prometheus page."""
        return f"http://{self.metrics}/metrics"

    def ready_urls(self) -> tuple[str, ...]:
        """URLs that return 200 when each version of each model is ready.

        One per model, because the server's own readiness fails while any model loads or unloads.
        """
        return tuple(
            f"{self.http_url}/v2/models/{model}/versions/{version}/ready"
            for model, versions in self.models.items()
            for version in versions
        )


@dataclass(frozen=True, slots=True)
class TritonInstallation:
    """Files of the wheel."""

    server: Path
    backend: Path
    """Folder of the Python backend."""
    stub: Path
    """Stub of the backend for this Python version."""
    libraries: Path


def find_triton() -> TritonInstallation:
    """Find Triton in the ``nvidia-pytriton`` wheel, without importing it.

    Raises:
        ExtraMissingError: Triton is not installed, or not for this Python version.
    """
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise ExtraMissingError("Triton (the nvidia-pytriton wheel)", "demo")
    package = Path(spec.origin).parent
    home = package / "tritonserver"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = TritonInstallation(
        server=home / "bin" / "tritonserver",
        backend=home / "backends" / "python",
        stub=home / "python_backend_stubs" / python / "triton_python_backend_stub",
        libraries=package.parent / "nvidia_pytriton.libs",
    )
    for path in (found.server, found.backend, found.stub, found.libraries):
        if not path.exists():
            raise ExtraMissingError(f"Triton for Python {python} ({path})", "demo")
    return found


def shared_memory_prefix(run: RunFolder, name: str) -> str:
    """Return a unique prefix for the replica's shared-memory regions."""
    return f"{_shm_of(run.path.parent)}{run.path.name}.{name}."


def remove_shared_memory(run: RunFolder, name: str, folder: Path = SHARED_MEMORY) -> None:
    """Remove the shared-memory regions of a killed replica."""
    for region in folder.glob(f"{shared_memory_prefix(run, name)}*"):
        region.unlink(missing_ok=True)


def sweep_shared_memory(runs: Path, folder: Path = SHARED_MEMORY) -> None:
    """Remove the shared-memory regions of ended runs below ``runs``.

    A run that was killed could not remove its own.
    """
    ours = _shm_of(runs)
    for region in folder.glob(f"{ours}run-*.*"):
        run = runs / region.name.removeprefix(ours).partition(".")[0]
        # Another process may have removed it at the same time.
        with contextlib.suppress(FileNotFoundError):
            if region.stat().st_uid == os.getuid() and not is_live(run):
                region.unlink(missing_ok=True)


def prepare_backends(run: RunFolder, installation: TritonInstallation) -> Path:
    """Create the run's backend folder: links to the Python backend and the matching stub."""
    for file in ("libtriton_python.so", "triton_python_backend_utils.py"):
        run.link(f"backends/python/{file}", installation.backend / file)
    run.link("backends/python/triton_python_backend_stub", installation.stub)
    return run.path / "backends"


def prepare_repository(run: RunFolder, replica: TritonReplica, models: Path | None = None) -> Path:
    """Create the replica's model repository: links to its models, restricted to its versions.

    Args:
        run: Run folder that contains the repository.
        replica: Replica with the models and versions.
        models: Folder of the models; default: those of the project.

    Raises:
        FileNotFoundError: A model or version does not exist; the message names it.
    """
    source = models or asset("models")
    repository = f"repositories/{replica.name}"
    for model, versions in replica.models.items():
        folder = source / model
        for version in versions:
            if not (folder / version).is_dir():
                raise FileNotFoundError(f"model {model!r} has no version {version!r} in {source}")
        for entry in folder.iterdir():
            hidden = entry.name.startswith((".", "__"))
            if not hidden and (not entry.name.isdigit() or entry.name in versions):
                run.link(f"{repository}/{model}/{entry.name}", entry)
    return run.path / repository


def triton_command(
    installation: TritonInstallation,
    replica: TritonReplica,
    repository: Path,
    backends: Path,
    shm_prefix: str,
) -> tuple[str, ...]:
    """Return the command line of one replica."""
    command = [
        str(installation.server),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
        "--model-control-mode=explicit",
        *(f"--load-model={model}" for model in replica.models),
        "--metrics-interval-ms=100",
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
    ]
    for port, address in (
        ("http", replica.http),
        ("grpc", replica.grpc),
        ("metrics", replica.metrics),
    ):
        host, _, number = address.rpartition(":")
        command += [f"--{port}-address={host}", f"--{port}-port={number}"]
    return tuple(command)


def triton_environment(
    installation: TritonInstallation, replica: TritonReplica, extra: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of one replica.

    The stubs need the library of this Python and must find this virtual environment first: with
    numpy 2 from elsewhere, tensors are corrupt (strides read as 0).
    """
    libraries = [str(installation.libraries), str(sysconfig.get_config_var("LIBDIR") or "")]
    inherited = os.environ.get("LD_LIBRARY_PATH", "")
    return {
        **os.environ,
        # The stub embeds Python, which locates its packages by the first `python3` on the PATH.
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
        "LD_LIBRARY_PATH": os.pathsep.join(part for part in (*libraries, inherited) if part),
        "TIDEGATE_REPLICA": replica.name,
        **extra,
    }


def _shm_of(runs: Path) -> str:
    # Run folders in different parents can have the same name.
    return f"tidegate-{blake2b(str(runs).encode(), digest_size=4).hexdigest()}-"
