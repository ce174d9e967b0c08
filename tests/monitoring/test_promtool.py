"""Rules and their tests, run by promtool."""

from __future__ import annotations

import subprocess

import pytest

from monitoring.binaries import found
from support.promql import FOLDER, RULES


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_rules_are_valid(path) -> None:
    """As Prometheus reads them."""
    _promtool("check", "rules", str(path))


@pytest.mark.timeout(900)  # promtool takes 50 s of a core
def test_alerts_fire_when_they_must_and_not_else() -> None:
    """Each with what it says, on series that are written down."""
    _promtool("test", "rules", str(FOLDER / "tests" / "alerts.yaml"))


def _promtool(*arguments: str) -> None:
    done = subprocess.run(
        [found("promtool"), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
