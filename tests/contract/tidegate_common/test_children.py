"""Whose code a child process runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tidegate_common.children import ROOT, child_environment, module_command


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a folder that holds packages of our names, which fail where they are imported."""
    for name in ("ext_proc", "tidegate_common", "json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('imported')")
    return tmp_path


def origin(folder: Path, environment: dict[str, str]) -> Path:
    """Return whose ``asks.py``, which stands beside our packages, a child in ``folder`` runs."""
    done = subprocess.run(
        module_command("asks"),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(done.stdout.strip()).parents[1]


@pytest.fixture
def asks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a module that prints where ``ext_proc`` is."""
    folder = tmp_path_factory.mktemp("asks")
    (folder / "asks.py").write_text("import json, ext_proc; print(ext_proc.__file__)")
    return folder


def test_a_child_runs_the_code_of_its_parent(
    hostile: Path, asks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies in the current folder is not looked at."""
    monkeypatch.setenv("PYTHONPATH", str(asks))
    assert origin(hostile, child_environment()) == ROOT


def test_an_empty_entry_of_the_path_is_dropped(
    hostile: Path, asks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``PYTHONPATH=:folder`` means the current folder as well; a child does not look there."""
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}{asks}")
    assert origin(hostile, child_environment()) == ROOT
    assert "" not in child_environment()["PYTHONPATH"].split(os.pathsep)


def test_another_installation_can_come_first(
    hostile: Path, asks: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A picker may run from a compiled copy, for example."""
    installed = tmp_path / "installed"
    (installed / "ext_proc").mkdir(parents=True)
    (installed / "ext_proc" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(asks))
    assert origin(hostile, child_environment(installed)) == installed
