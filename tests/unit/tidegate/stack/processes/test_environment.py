"""Whose code a child of the stack runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.stack.processes.environment import ROOT, service_environment


def origin(environment: dict[str, str], folder: Path) -> Path:
    """Return the folder from which a child in ``folder`` takes ``python -m ext_proc``."""
    # `-m` puts the current folder first, unless the environment forbids it: so does a module here.
    (folder / "asks.py").write_text("import ext_proc; print(ext_proc.__file__)")
    command = [sys.executable, "-m", "asks"]
    path = os.pathsep.join((environment["PYTHONPATH"], str(folder)))
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(done.stdout.strip()).parents[1]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Return a folder, to start in, that holds a package of our name."""
    (tmp_path / "ext_proc").mkdir()
    (tmp_path / "ext_proc" / "__init__.py").touch()
    return tmp_path


def test_services_run_the_code_of_this_checkout(tmp_path: Path) -> None:
    """A child in any folder finds our packages."""
    assert origin(service_environment(), tmp_path) == ROOT


def test_a_picker_of_another_installation_runs_its_code(elsewhere: Path, tmp_path: Path) -> None:
    """The installation that is named goes before all else, the current folder too."""
    installed = tmp_path / "installed"
    (installed / "ext_proc").mkdir(parents=True)
    (installed / "ext_proc" / "__init__.py").touch()
    assert origin(service_environment(installed), elsewhere) == installed
