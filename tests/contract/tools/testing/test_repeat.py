"""Runs of layers that are repeated: kept, resumed, and told apart."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.testing.repeat import RunSeries, reasons, repeat, tree_of

SAID = """unit                         2      1      1      -
unit failed with exit code 1:
  tests/unit/test_it.py::test_x: assert 1 == 2
lab failed with exit code 3:
  an internal error of pytest or of a plugin
"""
FAILS = (sys.executable, "-c", f"print({SAID!r}); raise SystemExit(1)")
PASSES = (sys.executable, "-c", "print('all well')")


def series_in(folder: Path, tree="abc", layers=("lab",), load=0) -> RunSeries:
    """Return a series whose runs and logs are in a folder."""
    return RunSeries(folder / "runs.jsonl", folder, "1234", tree, layers, load)


def test_missing_runs_are_made_and_failed_ones_are_kept(tmp_path: Path, capsys):
    """A failed run is not made again, and a second command makes what is missing."""
    series = series_in(tmp_path)
    assert repeat(series, 1, FAILS) == 1
    assert series.runs()[0]["failed"] == SAID.splitlines()[1:]
    capsys.readouterr()
    assert repeat(series_in(tmp_path), 3, PASSES) == 1
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said if "log)" in line] == ["failed", "passed", "passed"]
    assert said[-1] == "3 of 3 runs, 1 failed"
    assert sorted(each.name for each in tmp_path.glob("*.log")) == ["1.log", "2.log", "3.log"]


def test_runs_of_another_tree_layer_or_load_do_not_count(tmp_path: Path):
    """Each has its own number; the load runs beside and ends with the run."""
    assert repeat(series_in(tmp_path), 1, PASSES) == 0
    others = [
        series_in(tmp_path, tree="abd"),
        series_in(tmp_path, layers=("lab", "process")),
        series_in(tmp_path, load=1),
    ]
    for each in others:
        assert each.runs() == []
        assert repeat(each, 1, PASSES) == 0
        assert len(each.runs()) == 1


def test_a_commit_of_results_goes_on_with_the_runs_before_it():
    """Any other file makes another tree."""
    listed = "040000 tree {}\tresults\n100644 blob {}\tresults.py\n"
    assert tree_of(listed.format("1", "2")) == tree_of(listed.format("3", "2"))
    assert tree_of(listed.format("1", "2")) != tree_of(listed.format("1", "3"))


def test_what_failed_is_read_from_the_end_of_the_output():
    """Of a run that passed, nothing is."""
    assert reasons("--- unit\n  a line of a test\n" + SAID) == SAID.splitlines()[1:]
    assert reasons("--- unit\n  a line of a test\n") == []
