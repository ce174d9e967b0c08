"""A Triton replica as a child: folders, command line, environment, readiness.

The server comes from the ``nvidia-pytriton`` wheel, used as a supplier of binaries only: Triton
2.51 for CPUs with the Python backend.
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

from tidegate.stack.assets import DemoExtraMissingError, asset
from tidegate.stack.runfolder import is_live

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tidegate.stack.runfolder import RunFolder

MODELS: Final = ("toy-llm", "vision", "counter")
"""The models of the demo."""
EXIT_TIMEOUT_S: Final = 2
"""Triton waits for its connections at exit; a proxy's idle pool would hold it to the bound."""
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - where Triton's stubs put their regions


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonReplica:
    """One replica: its addresses and what it serves."""

    name: str
    http: str
    """``ip:port``."""
    grpc: str
    """``ip:port``."""
    metrics: str
    """``ip:port``; the page is at ``metrics_url``."""
    variant: str = "stable"
    """Variant of the ``llm`` pool to which it belongs."""
    models: Mapping[str, Sequence[str]] = field(
        default_factory=lambda: {"toy-llm": ("1",), "vision": ("1",), "counter": ("1",)}
    )
    """Model name to the versions that it serves."""

    @property
    def http_url(self) -> str:
        """URL of its HTTP port."""
        return f"http://{self.http}"

    @property
    def metrics_url(self) -> str:
        """URL of its Prometheus page."""
        return f"http://{self.metrics}/metrics"

    def ready_urls(self) -> tuple[str, ...]:
        """URLs that answer 200 once each version of each model is ready.

        Per model, as server readiness goes red whenever any model loads or unloads.
        """
        return tuple(
            f"{self.http_url}/v2/models/{model}/versions/{version}/ready"
            for model, versions in self.models.items()
            for version in versions
        )


@dataclass(frozen=True, slots=True)
class TritonInstallation:
    """The files of the wheel that we use."""

    server: Path
    backend: Path
    """Folder of the Python backend."""
    stub: Path
    """The backend's stub for the running Python."""
    libraries: Path


def find_triton() -> TritonInstallation:
    """Find Triton in the ``nvidia-pytriton`` wheel, without importing it.

    Raises:
        DemoExtraMissingError: it is not installed, or not for this Python.
    """
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise DemoExtraMissingError("Triton (the nvidia-pytriton wheel)")
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
            raise DemoExtraMissingError(f"Triton for Python {python} ({path})")
    return found


def shared_memory_prefix(run: RunFolder, name: str) -> str:
    """Return a prefix for the replica's shared memory that no other replica uses."""
    return f"{_shm_of(run.path.parent)}{run.path.name}.{name}."


def remove_shared_memory(run: RunFolder, name: str, folder: Path = SHARED_MEMORY) -> None:
    """Remove what a killed replica left in shared memory."""
    for region in folder.glob(f"{shared_memory_prefix(run, name)}*"):
        region.unlink(missing_ok=True)


def sweep_shared_memory(runs: Path, folder: Path = SHARED_MEMORY) -> None:
    """Remove the regions of runs below ``runs`` that no longer live.

    A run that was itself killed could not clean up.
    """
    ours = _shm_of(runs)
    for region in folder.glob(f"{ours}run-*.*"):
        run = runs / region.name.removeprefix(ours).partition(".")[0]
        # A replica that ends, or a set that starts at the same time, may have removed it.
        with contextlib.suppress(FileNotFoundError):
            if region.stat().st_uid == os.getuid() and not is_live(run):
                region.unlink(missing_ok=True)


def prepare_backends(run: RunFolder, installation: TritonInstallation) -> Path:
    """Make the run's backend folder: links to the Python backend and the fitting stub."""
    for file in ("libtriton_python.so", "triton_python_backend_utils.py"):
        run.link(f"backends/python/{file}", installation.backend / file)
    run.link("backends/python/triton_python_backend_stub", installation.stub)
    return run.path / "backends"


def prepare_repository(run: RunFolder, replica: TritonReplica, models: Path | None = None) -> Path:
    """Make the replica's model repository: links to its models with only its versions.

    Args:
        run: where to make it.
        replica: what it serves.
        models: folder of the models; the project's own by default.

    Raises:
        FileNotFoundError: a model or version does not exist; the text names it.
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

    Its stubs need our Python's library and must find our virtual environment first: numpy 2, found
    elsewhere, corrupts tensors (strides read as 0).
    """
    libraries = [str(installation.libraries), str(sysconfig.get_config_var("LIBDIR") or "")]
    inherited = os.environ.get("LD_LIBRARY_PATH", "")
    return {
        **os.environ,
        # The stub embeds Python, which finds its packages by the `python3` that is first on PATH.
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
        "LD_LIBRARY_PATH": os.pathsep.join(part for part in (*libraries, inherited) if part),
        "TIDEGATE_REPLICA": replica.name,
        **extra,
    }


def _shm_of(runs: Path) -> str:
    # Run folders of different parents may bear one name.
    return f"tidegate-{blake2b(str(runs).encode(), digest_size=4).hexdigest()}-"
