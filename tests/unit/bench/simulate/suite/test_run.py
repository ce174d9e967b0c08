"""A suite runs missing cells only and gives the same results from stored ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.simulate.scenario import Scenario
from bench.simulate.suite.document import BEGIN, END, MarkersError, replaced
from bench.simulate.suite.plan import AUTO, Arm, Chapter, TrafficSource
from bench.simulate.suite.run import Suite, SuiteSection
from bench.simulate.suite.store import Store
from bench.simulate.suite.tables import best, comparisons, judged, markdown, records, reports

TRACES = Path(__file__).resolve().parents[4] / "contract" / "fixtures" / "traces"
CHAPTERS = (
    Chapter(
        "small",
        "Small trace",
        "About it.",
        TrafficSource("mooncake-conversation.jsonl"),
        (0.5, 0.8),
        (
            Arm((AUTO, "oracle", "least-in-flight"), Scenario(replicas=2)),
            Arm((AUTO,), Scenario(replicas=3), "3 replicas", 1.5),
        ),
        seeds=2,
        judged=True,
    ),
)


def run(path: Path) -> tuple[list[int], int, list[SuiteSection]]:
    """Run the suite; return what was to be done, what was done, and the results."""
    suite = Suite(CHAPTERS, TRACES, Store(path), 2)
    totals: list[int] = []
    done: list[None] = []
    suite.run(lambda _, total: totals.append(total), lambda: done.append(None))
    return totals, len(done), suite.sections()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the stored cells of a complete run."""
    path = tmp_path_factory.mktemp("suite") / "cells.jsonl"
    assert run(path)[:2] == ([1, 16], 17)
    return path


@pytest.fixture(scope="module")
def again(kept: Path) -> tuple[list[int], int, list[SuiteSection]]:
    """Return what another run over the stored cells does."""
    return run(kept)


@pytest.fixture
def sections(again: tuple[list[int], int, list[SuiteSection]]) -> list[SuiteSection]:
    """Return its results."""
    return again[2]


def test_a_second_run_does_nothing(
    kept: Path, again: tuple[list[int], int, list[SuiteSection]]
) -> None:
    """A second run executes nothing and has the same tables."""
    totals, done, sections = again
    assert (totals, done) == ([0, 0], 0)
    assert markdown(sections) == markdown(run(kept)[2])


def test_all_rows_are_records(sections: list[SuiteSection]) -> None:
    """The CSV has a row for each policy, arm and load; the page has the comparisons alone."""
    heads, *found = records(sections)
    assert len(found) == 8
    assert {len(each) for each in found} == {len(heads)}
    assert [each[1] for each in found] == ["50%"] * 4 + ["80%"] * 4
    assert comparisons(sections).count("\n| Small trace") == 2


def test_a_cut_run_goes_on(kept: Path, sections: list[SuiteSection], tmp_path: Path) -> None:
    """Missing cells are run again with the same results."""
    path = tmp_path / "cells.jsonl"
    lines = kept.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:10]))
    totals, _, found = run(path)
    assert totals == [0, 7]
    assert markdown(found) == markdown(sections)


def test_who_breaks_off_does_not_wait_for_the_rest(tmp_path: Path) -> None:
    """After an interruption, finished cells are stored and pending ones do not run."""
    path = tmp_path / "cells.jsonl"
    suite = Suite(CHAPTERS, TRACES, Store(path), 1)
    done: list[None] = []

    def enough() -> None:
        done.append(None)
        if len(done) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        suite.run(lambda *_: None, enough)
    assert len(Store(path)) == 3


def test_rates_scale_with_the_fleet(sections: list[SuiteSection]) -> None:
    """The rate is the share of saturation, scaled by replicas and the arm's pace."""
    for section, load in zip(sections, (0.5, 0.8), strict=True):
        assert section.rate == pytest.approx(load * section.saturation * 2 / 8)
        assert section.parts[1].rate == pytest.approx(1.5 * section.rate)


def test_the_tables_have_a_row_per_policy_and_arm(sections: list[SuiteSection]) -> None:
    """Aims first, then the chapter with both loads, auto equal to itself."""
    text = markdown(sections)
    assert text.startswith("`auto` against others")
    assert text.count("| auto, 3 replicas |") == text.count("| oracle |") == 2
    assert text.count("<details>") == text.count("</details>") == 1
    (row,) = {line[-13:] for line in text.splitlines() if line.startswith("| auto | ")}
    assert row == "| = | = | = |"


def test_a_report_has_both_loads(sections: list[SuiteSection]) -> None:
    """There is one report per chapter, with both loads."""
    (report,) = reports(sections)
    assert [row.load for row in report.rows] == [0.5] * 4 + [0.8] * 4
    assert report.workload == "Small trace"


def test_the_aims_are_judged_both_ways(sections: list[SuiteSection]) -> None:
    """A slower result is bold, a faster one is not; the best policy is never auto."""
    section = sections[1]
    part = section.parts[0]
    mean = {name: runs[0].metrics.ttft_mean for name, runs in part.runs.items()}
    fast, slow = sorted(part.runs, key=lambda name: mean[name] or 0.0)[:: len(mean) - 1]
    assert judged(part.runs[fast], part.runs[slow], "ttft_mean")[0]
    holds, text = judged(part.runs[slow], part.runs[fast], "ttft_mean")
    assert not holds
    assert text.startswith("**+")
    assert best(part, "ttft_mean")[0] != AUTO


def test_results_go_between_the_markers() -> None:
    """Text outside the markers is kept; a page without markers is an error."""
    page = f"before\n{BEGIN}\nold\n{END}\nafter"
    once = replaced(page, "new")
    assert once == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter"
    assert replaced(once, "new") == once
    for bad in ("", BEGIN, f"{END}{BEGIN}", page + page):
        with pytest.raises(MarkersError, match="each once"):
            replaced(bad, "new")
