"""The generated parts of the documentation are what the code says now."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
GENERATE = ROOT / "docs" / "generate"


def generate(*arguments: str, script: Path = GENERATE) -> subprocess.CompletedProcess[str]:
    """Run the generator on this checkout."""
    return subprocess.run(
        [sys.executable, script, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the documentation's text and generator."""
    for path in ROOT.joinpath("docs").rglob("*"):
        if path.suffix in {".md", ".py", ".sequence", ".svg", ".json"}:
            target = tmp_path / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return tmp_path / "docs"


def test_the_committed_pages_are_current_and_a_stale_one_is_written_anew(copy):
    """Fields, verbs, metrics, names and diagrams agree with the code.

    The check names the one page that was edited by hand, and the generator restores it.
    """
    page = copy / "reference" / "metrics.md"
    before = page.read_text()
    page.write_text(before.replace("| gauge |", "| counter |", 1))
    done = generate("--check", script=copy / "generate")
    assert done.returncode == 1
    assert done.stderr.split("\n")[1:] == ["  docs/reference/metrics.md", ""]
    assert generate(script=copy / "generate").returncode == 0
    assert page.read_text() == before


def test_a_page_without_a_part_is_refused(copy):
    """A verb, model or metric that no page shows stops the generator."""
    page = copy / "reference" / "cli-change.md"
    page.write_text(page.read_text().replace("<!-- generated: cli drain -->", ""))
    done = generate("--check", script=copy / "generate")
    assert done.returncode == 1
    assert "cli drain" in done.stderr
