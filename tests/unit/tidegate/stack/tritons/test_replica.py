"""A Triton replica's folders, command line and environment."""

import sys
from pathlib import Path

import pytest

from tidegate.stack.assets import ExtraMissingError
from tidegate.stack.runfolder import RunFolder
from tidegate.stack.tritons import replica as triton
from tidegate.stack.tritons.replica import TritonInstallation, TritonReplica

INSTALLATION = TritonInstallation(
    server=Path("/t/tritonserver"),
    backend=Path("/t/backends/python"),
    stub=Path("/t/stubs/triton_python_backend_stub"),
    libraries=Path("/t/libs"),
)


def replica(**changes) -> TritonReplica:
    """Return a replica with the default models."""
    values = {
        "name": "r1",
        "http": "127.0.0.1:8000",
        "grpc": "127.0.0.1:8001",
        "metrics": "127.0.0.1:8002",
        **changes,
    }
    return TritonReplica(**values)


@pytest.fixture
def run(tmp_path):
    """Return a run folder."""
    with RunFolder.create(tmp_path / "runs") as folder:
        yield folder


def test_readiness_is_asked_per_model_and_version():
    """Readiness URLs are per model and version, because server readiness fails during any load."""
    urls = replica(models={"toy-llm": ("1", "2"), "vision": ("1",)}).ready_urls()
    assert urls == (
        "http://127.0.0.1:8000/v2/models/toy-llm/versions/1/ready",
        "http://127.0.0.1:8000/v2/models/toy-llm/versions/2/ready",
        "http://127.0.0.1:8000/v2/models/vision/versions/1/ready",
    )


def test_a_repository_has_only_the_replicas_versions(run):
    """The repository contains only the replica's versions."""
    path = triton.prepare_repository(run, replica(models={"toy-llm": ("2",)}))
    assert sorted(entry.name for entry in path.iterdir()) == ["toy-llm"]
    entries = {entry.name for entry in (path / "toy-llm").iterdir()}
    assert entries == {"2", "config.pbtxt", "toyllm"}


def test_a_version_that_does_not_exist_is_named(run):
    """A missing version is an error before Triton starts."""
    with pytest.raises(FileNotFoundError, match="'toy-llm' has no version '9'"):
        triton.prepare_repository(run, replica(models={"toy-llm": ("9",)}))


def test_each_replica_has_its_own_shared_memory(run, tmp_path):
    """Colliding regions corrupt tensors; runs and replicas never share a prefix."""
    prefix = triton.shared_memory_prefix(run, "r1")
    assert prefix != triton.shared_memory_prefix(run, "r10")
    assert not triton.shared_memory_prefix(run, "r10").startswith(prefix)
    with RunFolder.create(tmp_path / "runs") as other:
        assert prefix != triton.shared_memory_prefix(other, "r1")


def test_a_killed_replicas_regions_are_removed(run, tmp_path):
    """Only the regions of the killed replica are removed."""
    mine = tmp_path / f"{triton.shared_memory_prefix(run, 'r1')}abc"
    other = tmp_path / f"{triton.shared_memory_prefix(run, 'r2')}abc"
    mine.touch()
    other.touch()
    triton.remove_shared_memory(run, "r1", tmp_path)
    assert (mine.exists(), other.exists()) == (False, True)


def test_regions_of_dead_runs_are_swept(run, tmp_path):
    """Regions of ended runs are removed, those of live runs stay."""
    with RunFolder.create(run.path.parent) as dead:
        left = tmp_path / f"{triton.shared_memory_prefix(dead, 'r1')}abc"
    living = tmp_path / f"{triton.shared_memory_prefix(run, 'r1')}abc"
    foreign = tmp_path / "tidegate-other-run-x.r1.abc"
    for region in (left, living, foreign):
        region.touch()
    triton.sweep_shared_memory(run.path.parent, tmp_path)
    assert (left.exists(), living.exists(), foreign.exists()) == (False, True, True)


def test_a_region_that_is_just_removed_is_no_error(run, tmp_path):
    """Another process may remove a region; a dangling link simulates it."""
    region = tmp_path / f"{triton.shared_memory_prefix(run, 'r1')}abc"
    region.symlink_to(tmp_path / "gone")
    triton.sweep_shared_memory(run.path.parent, tmp_path)
    assert region.is_symlink()


def test_all_ports_are_on_their_given_address(run):
    """All ports are bound to the given addresses."""
    command = triton.triton_command(INSTALLATION, replica(), run.path, run.path, "p")
    for flag in (
        "--http-address=127.0.0.1",
        "--http-port=8000",
        "--grpc-address=127.0.0.1",
        "--grpc-port=8001",
        "--metrics-address=127.0.0.1",
        "--metrics-port=8002",
    ):
        assert flag in command


def test_models_are_loaded_explicitly(run):
    """The model-control mode is explicit, so that single models can be loaded."""
    command = triton.triton_command(
        INSTALLATION, replica(models={"vision": ("1",)}), run.path, run.path, "p"
    )
    assert "--model-control-mode=explicit" in command
    assert [flag for flag in command if "load-model" in flag] == ["--load-model=vision"]


def test_the_stub_finds_this_python_first(monkeypatch):
    """The stub's PATH starts with this Python, because numpy from elsewhere corrupts tensors."""
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    env = triton.triton_environment(INSTALLATION, replica(), {"TOY_LLM_TIME_SCALE": "0.5"})
    assert env["PATH"] == f"{Path(sys.executable).parent}:/usr/bin"
    assert env["LD_LIBRARY_PATH"].startswith("/t/libs:")
    assert env["LD_LIBRARY_PATH"].endswith(":/mine")
    assert (env["TIDEGATE_REPLICA"], env["TOY_LLM_TIME_SCALE"]) == ("r1", "0.5")


def test_without_the_wheel_the_error_says_what_to_install(monkeypatch):
    """The error contains the pip command."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ExtraMissingError, match=r"pip install 'tidegate\[demo\]'"):
        triton.find_triton()


def test_a_wheel_without_this_pythons_stub_is_an_error(monkeypatch, tmp_path):
    """The error names the Python version without a stub."""
    (tmp_path / "pytriton").mkdir()

    class Spec:
        origin = str(tmp_path / "pytriton" / "__init__.py")

    monkeypatch.setattr("importlib.util.find_spec", lambda _: Spec)
    with pytest.raises(ExtraMissingError, match="Triton for Python 3"):
        triton.find_triton()
