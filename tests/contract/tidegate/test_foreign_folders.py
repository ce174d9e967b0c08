"""Every verb runs from a folder that holds packages of our names: none of them is imported."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.hostile import TIDEGATE, fill
from tidegate.cli.main import VERBS

if TYPE_CHECKING:
    from pathlib import Path

FLEET = "pools: [{name: a, match: {models: [m]}, endpoints: [{http: '127.0.0.1:8000'}]}]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return such a folder, with a fleet file."""
    (tmp_path / "fleet.yaml").write_text(FLEET)
    return fill(tmp_path)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the console script there."""
    command = (TIDEGATE, *arguments)
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


HELP = """
from tidegate.cli.main import VERBS, main
for verb in VERBS:
    try:
        main([verb.name, "--help"])
    except SystemExit as ended:
        if ended.code:
            raise
"""


def test_every_verb_explains_itself(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its help page needs nothing from the current folder; one process shows them all."""
    script = tmp_path_factory.mktemp("bin") / "help.py"  # elsewhere, as the console script is
    script.write_text(HELP)
    command = (sys.executable, str(script))
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    said = " ".join(ran.stdout.replace("│", " ").split())
    assert not [verb.name for verb in VERBS if f"Example: tidegate {verb.name}" not in said]


def test_a_fleet_file_is_validated(folder: Path) -> None:
    """YAML, pydantic and the schemas are the installed ones."""
    ran = run(folder, "validate", "fleet.yaml")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "fleet.yaml is valid" in ran.stdout


def test_a_bootstrap_is_printed(folder: Path) -> None:
    """The template is the installed one, although there is a folder called `envoy`."""
    ran = run(folder, "envoy-bootstrap", "--node-id", "edge-1")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "id: edge-1" in ran.stdout


def test_a_reading_verb_gets_as_far_as_the_server(folder: Path) -> None:
    """GRPC and its messages are the installed ones; there is only no server."""
    ran = run(folder, "status", "--server", "127.0.0.1:1")
    assert ran.returncode == 3
    assert "cannot reach the control server at 127.0.0.1:1" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("xds", "--fleet", "none.yaml", "--ads", "127.0.0.1:0", "--admin", "127.0.0.1:0"), "none"),
        (("picker", "--listen", "192.0.2.1:1", "--insecure", "--transport", "grpc"), "192.0.2.1"),
    ],
)
def test_a_service_gets_as_far_as_its_own_fault(
    folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    """It reads its settings and ends with a usage error; that is after all of its imports."""
    ran = run(folder, *arguments, "--metrics", "127.0.0.1:0")
    assert ran.returncode == 2, ran.stderr
    assert said in ran.stderr + ran.stdout
    assert "was imported" not in ran.stderr + ran.stdout
