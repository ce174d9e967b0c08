"""Suites that `make test` leaves out: how time is divided, and what is said of each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import suites
from tools.suites import ROOT, SOAK, Suite, SuiteResult, everything, run, soak, table


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let logs go to a folder of the test below the checkout's, as reports name them."""
    monkeypatch.setattr(suites, "LOGS", tmp_path)
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    monkeypatch.setattr(suites, "ENDING_S", 1.0)


DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); signal.pause()"
"""What ignores an interrupt, as what a shell started in the background does."""


def python(code: str, **more: object) -> Suite:
    """Return a suite that runs a line of Python."""
    return Suite("it", (sys.executable, "-c", code), is_pytest=False, **more)


def test_a_soak_divides_its_minutes(monkeypatch):
    """By weight, all with one seed; the limits are the minutes and what starting takes."""
    monkeypatch.setattr(suites, "ROOT", ROOT)
    made = {suite.name: suite for suite in soak(60.0, 7, {})}
    assert int(made["crowd"].env["TIDEGATE_STORM_CHANGES"]) > 300
    seeds = {v for suite in made.values() for name, v in suite.env.items() if "SEED" in name}
    assert seeds == {"7"}
    total = sum(suite.limit_s - suites.GRACE_S for suite in made.values()) + suites.GRACE_S
    assert total == pytest.approx(3600.0)
    assert made["older-envoys"].lacks == "TIDEGATE_OLD_ENVOYS is not set"
    short = {suite.name: suite for suite in soak(1.0, 7, {"TIDEGATE_OLD_ENVOYS": "/envoy"})}
    assert short["older-envoys"].lacks is None
    assert short["storm"].env["TIDEGATE_STORM_CHANGES"] == "160"  # its least share, 20 s


def test_every_file_of_a_soak_exists(monkeypatch):
    """A suite of a file that was renamed would never run."""
    monkeypatch.setattr(suites, "ROOT", ROOT)
    assert not [share.file for share in SOAK if suites.place(share.file) is None]


def test_what_a_suite_needs_is_said_where_it_lacks(monkeypatch):
    """No compiler, no Go and no wheel end nothing: each suite has its reason."""
    monkeypatch.setattr(suites.shutil, "which", lambda _: None)
    monkeypatch.setattr(suites.Path, "home", lambda: Path("/nowhere"))

    def broken(*_: str) -> Path:
        raise OSError("no network")

    monkeypatch.setattr(suites, "binary", broken)
    monkeypatch.setattr(suites, "ROOT", ROOT)
    lacks = {suite.name: suite.lacks for suite in everything({}) if suite.lacks}
    assert lacks["compiled"] == lacks["wheels"] == "no C compiler (cc) on the PATH"
    assert "no network" in lacks["perf-analyzer"]
    assert set(lacks) == {
        *("kubernetes", "older-envoys", "perf-analyzer", "conformance", "compiled", "wheels"),
        "triton-examples",
    }


@pytest.mark.parametrize(
    ("suite", "state"),
    [
        (python("pass"), "passed"),
        (python("raise SystemExit(1)"), "failed"),
        (python("import signal; signal.pause()", limit_s=0.0), "cut"),
        (python(DEAF, limit_s=0.0), "cut"),
        (python("raise SystemExit(1)", lacks="no Go"), "not run"),
    ],
)
def test_a_suite_ends_in_one_of_four_ways(suite, state):
    """Each is a row of the table; what failed is told from what could not run."""
    assert run(suite).state == state


def test_the_report_of_pytest_is_counted(tmp_path):
    """A suite that skips all of its tests did not run, for their reasons."""
    (tmp_path / "test_a.py").write_text("def test_a(): pass\ndef test_b(): assert 0\n")
    (tmp_path / "test_b.py").write_text("import pytest\ndef test_c(): pytest.skip('no disk')\n")
    both = run(Suite("both", ("-p", "no:randomly", "test_a.py", "test_b.py")))
    assert (both.state, both.counts) == ("failed", "1 passed, 1 failed, 1 skipped")
    skipping = run(Suite("skipping", ("test_b.py",)))
    assert (skipping.state, skipping.reason) == ("not run", "no disk")


def test_the_table_has_a_row_for_each():
    """With what was counted, and the reason."""
    rows = [
        SuiteResult("storm", "passed", 2.0, "4 passed", ""),
        SuiteResult("go", "not run", 0, "", "no Go"),
    ]
    assert table(rows).splitlines() == [
        "storm           passed      2.0 min  4 passed",
        "go              not run     0.0 min            no Go",
    ]
