"""Plots and the page: self-contained and reproducible files."""

from __future__ import annotations

import builtins
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.simulate.experiment import RunPlan, run_many
from bench.simulate.generators import GENERATORS
from bench.simulate.page import page
from bench.simulate.plots import (
    FIGURES,
    PlotsMissingError,
    require_matplotlib,
    write_pngs,
)
from bench.simulate.report import Report, build
from bench.simulate.scenario import Scenario

SCENARIO = Scenario(replicas=2)


@pytest.fixture(scope="module")
def report() -> Report:
    """Return a small report."""
    workload = GENERATORS["mixed"](40, random.Random(0), 1.0)
    plans = [RunPlan(name, seed, 1.0) for name in ("round-robin", "oracle") for seed in (0, 1)]
    runs = run_many(workload, SCENARIO, plans, 5.0)
    return build(workload, SCENARIO, runs, slo_s=5.0, saturation=None, against="oracle")


def test_a_png_per_metric(report: Report, tmp_path: Path) -> None:
    """The name of each file contains the workload and the metric."""
    written = write_pngs(report, tmp_path / "new")
    assert {path.name for path in written} == {f"mixed-{name}.png" for name in FIGURES}
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in written)


def test_the_page_needs_nothing_else(report: Report) -> None:
    """The page contains tables, plots and settings, and loads no other file."""
    text = page(report)
    assert text.count("<svg") == len(FIGURES)
    assert "round-robin" in text
    assert "engine.prefill_rate" in text
    assert "<script" not in text
    assert 'src="' not in text


def test_several_reports_share_a_page(report: Report) -> None:
    """Each report has its chapter, linked from the list at the top."""
    text = page(report, replace(report, workload="another"))
    assert text.count("<svg") == 2 * len(FIGURES)
    assert "<a href='#c1'>another</a>" in text
    assert "<h2 id='c1'>another</h2>" in text


def test_without_the_extra_the_error_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing matplotlib is an error with the pip command."""
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    require_matplotlib()
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(PlotsMissingError, match=r"pip install -e '\.\[bench\]'"):
        require_matplotlib()
