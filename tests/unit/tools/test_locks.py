"""The lock files satisfy ``pyproject.toml``, and environments are made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.environment import LOCKED, lock_of, pins, steps
from tools.lock_check import faults, requirements
from tools.locks import command

ROOT = Path(__file__).resolve().parents[3]
HASH = f"    --hash=sha256:{'0' * 64}\n"
PROJECT = """
[build-system]
requires = ["hatchling>=1.27,<2"]
[project]
name = "tidegate"
dependencies = ["aiohttp>=3.11,<4"]
[project.optional-dependencies]
demo = ["numpy>=1.26,<2; python_version < '3.13'", "winonly>=1; sys_platform == 'win32'"]
all = ["tidegate[demo]"]
"""
PINNED = {"aiohttp": "3.14.5", "numpy": "1.26.4", "hatchling": "1.33.0", "editables": "0.6"}


@pytest.fixture
def project(tmp_path):
    """Return a project with a sound lock for each Python."""
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "requirements").mkdir()
    for python in LOCKED:
        write(lock_of(python, tmp_path), PINNED)
    return tmp_path


def write(lock, versions):
    """Write a lock file."""
    lock.write_text("".join(f"{name}=={at} \\\n{HASH}" for name, at in versions.items()))


def test_the_committed_locks_are_sound():
    """Each requirement is locked within its bounds, with hashes and without an address."""
    assert faults(ROOT) == []


def test_a_sound_project_has_no_faults(project):
    """References of the project to itself and markers of other platforms need no entry."""
    assert faults(project) == []
    assert {one.name for one in requirements(project, "3.11")} == set(PINNED)


def test_a_missing_package_is_named(project):
    """A requirement that is not locked is a fault."""
    lock = lock_of("3.11", project)
    write(lock, {name: at for name, at in PINNED.items() if name != "numpy"})
    (fault,) = faults(project)
    assert fault.startswith("requirements/ci-3.11.txt lacks numpy")


def test_a_version_out_of_bounds_is_named(project):
    """A version that pyproject.toml does not allow is a fault."""
    write(lock_of("3.12", project), PINNED | {"aiohttp": "4.0.0"})
    (fault,) = faults(project)
    assert fault.startswith("requirements/ci-3.12.txt has aiohttp 4.0.0, but")


def test_a_missing_lock_is_named(project):
    """Each Python of LOCKED has its file."""
    lock_of("3.12", project).unlink()
    assert faults(project) == ["requirements/ci-3.12.txt is missing"]


@pytest.mark.parametrize(
    ("added", "fault"),
    [
        ("--index-url https://host.example/simple\n", "is neither a package"),
        ("# from https://host.example/simple\n", "names an address"),
        ("left-pad==1.0\n", "is neither a package"),
        (f"left-pad==1.0 \\\nright-pad==1.0 \\\n{HASH}", "the package before has no hash"),
        ("left-pad==1.0 \\\n", "the last package has no hash"),
    ],
    ids=["index", "comment", "no-hash", "no-hash-between", "no-hash-last"],
)
def test_a_line_that_pip_must_not_see_is_named(project, added, fault):
    """A lock holds packages with hashes, and no address."""
    with lock_of("3.11", project).open("a") as lock:
        lock.write(added)
    (found,) = faults(project)
    assert fault in found


def test_the_whole_environment_is_checked_by_hash(project):
    """With ``dev`` pip takes the lock as it is and resolves nothing, then the checkout alone."""
    lock = lock_of("3.11", project)
    first, second = steps(["demo", "dev"], lock, Path("versions.txt"))
    assert first == ["--no-deps", "--require-hashes", "-r", str(lock)]
    assert second == ["--no-deps", "--no-build-isolation", "-e", "."]


def test_parts_take_the_versions_of_the_lock(project):
    """Without ``dev`` the lock's versions are constraints."""
    made = steps(["demo", "bench"], lock_of("3.11", project), Path("versions.txt"))
    assert made == [["-c", "versions.txt", "-e", ".[demo,bench]"]]


def test_a_python_without_a_lock_takes_the_bounds(project):
    """Pyproject.toml alone decides."""
    assert steps(["dev"], lock_of("3.13", project), Path("none")) == [["-e", ".[dev]"]]


def test_pins_are_read_with_markers_and_dots():
    """Names, versions and nothing else."""
    text = f"a.b-c==1.2.post1 ; python_version < '3.12' \\\n{HASH}d==2 \\\n{HASH}"
    assert pins(text) == {"a.b-c": "1.2.post1", "d": "2"}


def test_locks_name_no_index():
    """The addresses that a machine is set up with stay out of the file."""
    assert {"--no-emit-index-url", "--no-emit-find-links"} <= set(command("3.11"))
