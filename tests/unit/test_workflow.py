"""What runs in CI is what runs here."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_the_workflow_runs_the_gates_on_each_locked_python() -> None:
    """CI has no gates of its own: it calls ``.ci/run``, for each Python with a lock file."""
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    job = yaml.safe_load(text)["jobs"]["gates"]
    locked = {path.stem.removeprefix("ci-") for path in ROOT.glob("requirements/ci-*.txt")}
    assert set(job["strategy"]["matrix"]["python"]) == locked
    assert [step["run"] for step in job["steps"] if "run" in step] == ["bash .ci/run"]
