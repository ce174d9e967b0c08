"""Mutants of a module of ours, and the tests that fail with them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tools.testing.mutants import ROOT

MODULE = "tidegate_common/backoff.py"
TESTS = "tests/unit/tidegate_common/test_backoff.py"


def test_each_mutant_has_the_tests_that_kill_it(tmp_path: Path) -> None:
    """In forks, so the checkout and the tests are as they were."""
    found = tmp_path / "found.json"
    command = [sys.executable, "-m", "tools.testing.mutants", MODULE, "--tests", TESTS]
    more = ["--sample", "4", "--all-tests", "--record", str(found)]
    done = subprocess.run([*command, *more], cwd=ROOT, check=True, capture_output=True, text=True)
    record = json.loads(found.read_text())
    killers = [killed_by for *_, killed_by in record["mutants"]]
    assert len(killers) == 4
    assert any(killers)
    assert {each for some in killers for each in some} <= set(record["seconds"])
    assert {file for file, *_ in record["mutants"] + record["reach"]} == {MODULE}
    assert f"{MODULE}: {sum(map(bool, killers))} of 4 mutants killed" in done.stderr
