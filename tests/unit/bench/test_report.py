"""Verdicts and tables of the bench's report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from bench.load.plan import Results
from bench.report.aims import aims
from bench.report.parts import number, span
from bench.report.tables import sections
from bench.report.write import BEGIN, END, fill, write_report
from bench.suites.scale import growth, line, telemetry_axes
from bench.suites.summary import caches, distribution, median_of, served, since

if TYPE_CHECKING:
    from pathlib import Path

ABOUT = {"command": "tidegate bench x", "date": "2026-01-01", "took_s": 1.0, "form": "quick"}


def row(contender: str, numbers: dict[str, float], seed: int = 0, fault: str = "") -> Any:
    """Return one run of a contender with these numbers."""
    times = {key: numbers.get(key, 1.0) for key in ("mean", "p50", "p90", "p99")}
    return {
        "workload": "w",
        "load": 0.9,
        "seed": seed,
        "contender": contender,
        "fault": fault,
        "rate": 3.0,
        "requests": 100,
        "ttft": times,
        "e2e": times,
        "goodput": numbers.get("goodput", 1.0),
        "errors": {},
        "failed_before": int(numbers.get("lost", 0)),
        "failed_begun": 0,
        "lag_p99_ms": 1.0,
        "hit_ratio": 0.3,
        "spread_computed": 1.1,
        "busy_cores": 0.5,
        "commit": "c0",
        "date": f"2026-01-0{seed + 1}",
        "took_s": 60.0,
        "phase": {"ttft": times, "e2e": times, "goodput": 1.0},
    }


def fleet(
    ours: dict[str, float], theirs: dict[str, float], *, rich: bool = True, seeds: int = 3
) -> dict[str, Any]:
    """Return results of a fleet of two contenders with about these numbers under each seed."""
    rows = []
    for seed in range(seeds):
        # Both meet the same arrivals: a heavy seed is heavy for both, and a little chance is left.
        for name, numbers, chance in (("tidegate", ours, 1 + 0.002 * seed), ("peer", theirs, 1.0)):
            made = {
                key: value * chance * (1 + seed) if key in ("mean", "p99") else value
                for key, value in numbers.items()
            }
            rows.append(row(name, made, seed))
    rows.append(row("tidegate", ours, 0, "kill"))
    suite = {
        **ABOUT,
        "replicas": 8,
        "seconds": 1.0,
        "warmup": 0.25,
        "missing": {"vllm-router": "no wheel"},
        "workloads": {"w": {"cache_rich": rich, "scale": 8.0, "slo_s": 9.0}},
        "journal": "fleet-1.jsonl",
        "left": 2,
        "rows": rows,
    }
    return {"suites": {"fleet": suite}}


def verdicts(results: dict[str, Any]) -> dict[str, str]:
    """Return each fleet aim's verdict."""
    return {aim.name: aim.verdict for aim in aims(results) if aim.got != "-"}


def test_a_failed_suite_is_not_measured() -> None:
    """A failed suite has no verdicts."""
    assert {aim.reached for aim in aims({"suites": {"scale": {"failed": "x"}}})} == {None}


def test_better_than_the_best_peer_is_reached() -> None:
    """Lower for every seed reaches the aim, higher misses it, even if seeds differ by 3x."""
    found = verdicts(fleet({"mean": 0.9, "p99": 1.1}, {"mean": 1.0, "p99": 1.0}))
    assert found["w at 90%: TTFT mean"] == "reached"
    assert found["w at 90%: TTFT p99"] == "missed"
    assert found["w at 90%: in time"] == "reached"


def test_an_interval_that_crosses_decides_nothing() -> None:
    """A difference within the interval is undecided."""
    results = fleet({"mean": 0.999}, {"mean": 1.0})
    aim = next(aim for aim in aims(results) if aim.name == "w at 90%: TTFT mean")
    assert (aim.verdict, aim.why) == ("undecided", "the interval crosses the bound")
    assert "3 seeds" in aim.got


def test_one_seed_decides_nothing() -> None:
    """One seed has no interval, so the aim is undecided."""
    aim = next(
        aim
        for aim in aims(fleet({"mean": 0.1}, {"mean": 1.0}, seeds=1))
        if aim.name == "w at 90%: TTFT mean"
    )
    assert (aim.verdict, aim.why) == ("undecided", "one seed: no interval")


def test_a_peer_of_one_seed_can_only_leave_it_open() -> None:
    """A peer with one seed that looks better makes the aim undecided."""
    for mean, verdict in ((2.0, "reached"), (0.1, "undecided")):
        results = fleet({"mean": 0.9}, {"mean": 1.0})
        results["suites"]["fleet"]["rows"].append(row("other", {"mean": mean}))
        assert verdicts(results)["w at 90%: TTFT mean"] == verdict


def test_tidegate_in_another_form_is_no_peer() -> None:
    """Other forms of Tidegate are not compared as peers."""
    results = fleet({"mean": 0.9}, {"mean": 1.0})
    rows = results["suites"]["fleet"]["rows"]
    rows += [row("tidegate-generate", {"mean": 0.1}, seed) for seed in range(3)]
    assert verdicts(results)["w at 90%: TTFT mean"] == "reached"


def test_a_request_lost_before_its_answer_misses_the_aim() -> None:
    """One request lost before its first byte misses the aim."""
    name = "fault phases: requests lost whose answer had not begun"
    assert verdicts(fleet({}, {}))[name] == "reached"
    assert verdicts(fleet({"lost": 1}, {}))[name] == "missed"


def test_throughput_is_judged_against_the_named_peer() -> None:
    """1.4 times the peer's rate is enough, 1.2 times is not, 1.3 not clear; so for compiled."""

    def suite(rate: float) -> dict[str, Any]:
        rows = [
            {
                "contender": name,
                "bytes": 32_768,
                "per_s": each + turn,
                "cpu_us": {"x": 1.0},
                "round": turn,
            }
            for turn in range(3)
            for name, each in (
                ("tidegate", rate),
                ("tidegate-compiled", 150.0),
                ("vllm-cache_aware", 100.0),
            )
        ]
        return {"suites": {"throughput": {**ABOUT, "rows": rows}}}

    assert next(iter(verdicts(suite(140.0)).values())) == "reached"
    assert (
        verdicts(suite(120.0))["requests/s over vllm-cache_aware's, 32 KB, compiled"] == "reached"
    )
    assert next(iter(verdicts(suite(120.0)).values())) == "missed"
    assert next(iter(verdicts(suite(130.3)).values())) == "undecided"


def test_a_report_has_all_in_files(tmp_path: Path) -> None:
    """Markdown, page and plots are written; what is missing is named."""
    pytest.importorskip("matplotlib", reason="plots need the extra `bench`")
    results = orjson.loads(orjson.dumps(fleet({"mean": 0.5}, {"mean": 1.0})))
    markdown, page = write_report(results, tmp_path)
    text = markdown.read_text()
    assert "| w at 90%: TTFT mean |" in text
    assert "vllm-router could not be installed and was not measured: no wheel" in text
    assert "7 runs, 7 minutes in total, 2026-01-01 to 2026-01-03, at c0" in text
    assert "2 runs are missing." in text
    assert "| tidegate | 3 |" in text
    assert "requests from the fault on (kill)" in text
    assert (tmp_path / "fleet-1.png").read_bytes().startswith(b"\x89PNG")
    assert "data:image/png;base64," in page.read_text()


def test_a_page_is_filled_between_its_markers(tmp_path: Path) -> None:
    """What stands around the markers stays; a page without them is refused."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        fill(fleet({}, {}), page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert text.count("**Aims that were not reached**") == 1
    assert "\nAims: " in text
    assert "### fleet" not in text
    page.write_text("nothing")
    with pytest.raises(ValueError, match="has no lines"):
        fill(fleet({}, {}), page)


def test_a_failed_suite_is_in_the_report() -> None:
    """The section of a failed suite contains the reason."""
    suite = {**ABOUT, "failed": "not done after 60 s"}
    (section,) = sections({"suites": {"control": suite}})
    assert section.text[-1] == "FAILED: not done after 60 s"


def test_a_suite_that_was_cut_shows_what_it_had() -> None:
    """An interrupted suite shows its saved rows, its verdicts and the reason."""
    results = fleet({"mean": 0.9}, {"mean": 1.0})
    results["suites"]["fleet"]["stopped"] = "not done after 60 s"
    (section,) = sections(results)
    assert "STOPPED: not done after 60 s; results up to then follow." in section.text
    assert section.tables
    assert verdicts(results)["w at 90%: TTFT mean"] == "reached"


def test_numbers_are_written_plainly() -> None:
    """Unknown is a dash; a range shows only where runs differ."""
    assert number(None) == "-"
    assert span(None) == "-"
    assert span({"median": 1.0, "low": 1.0, "high": 1.0}) == "1.00"
    assert span({"median": 2.0, "low": 1.0, "high": 3.0}, 0) == "2 (1-3)"


def test_served_counts_failures_as_late_and_tells_them_apart() -> None:
    """Failures before and after the first byte are counted separately, without warm-up."""
    results = Results(
        intended=[0.0, 1.0, 2.0, 3.0],
        sent=[0.0, 1.0, 2.0, 3.0],
        first=[9.0, 1.5, None, 3.1],
        end=[9.5, 2.0, 2.5, 3.2],
        outcome=["ok", "ok", "closed", "cut"],
    )
    found = served(results, warmup=0.25, scale=10.0, slo_s=6.0)
    assert found["measured"] == 3
    assert found["ttft"]["mean"] == pytest.approx(5.0)
    assert found["goodput"] == pytest.approx(1 / 3)
    assert (found["failed_before"], found["failed_begun"]) == (1, 1)


def test_a_phase_is_of_the_requests_due_in_it() -> None:
    """Only requests that were due in the phase count; without any there are no numbers."""
    ok = {"sent": [0.0, 1.0, 2.0], "end": [9.0, 1.9, 2.5], "outcome": ["ok"] * 3}
    results = Results(intended=[0.0, 1.0, 2.0], first=[8.0, 1.5, 2.1], **ok)
    found = since(results, at=1.0, scale=10.0, slo_s=2.0)
    assert (found["measured"], found["goodput"]) == (2, 0.5)
    assert found["ttft"]["mean"] == pytest.approx(3.0)
    assert since(results, at=5.0, scale=10.0, slo_s=2.0)["goodput"] is None


def test_caches_are_what_replicas_counted() -> None:
    """Hits are of prompt tokens; spread is the most over the mean."""
    stats = {
        "a": {"prompt": 100, "hit": 50, "requests": 3, "computed": 60},
        "b": {"prompt": 100, "hit": 0, "requests": 1, "computed": 100},
    }
    found = caches(stats)
    assert found["hit_ratio"] == 0.25
    assert found["spread_requests"] == 1.5
    assert caches({})["hit_ratio"] is None


def test_medians_need_every_run() -> None:
    """Where one run has no number there is no median."""
    runs = [{"x": {"y": 1.0}}, {"x": {"y": 3.0}}]
    assert median_of(runs, "x", "y") == {"median": 2.0, "low": 1.0, "high": 3.0}
    assert median_of([*runs, {"x": {"y": None}}], "x", "y") is None
    assert distribution([])["p99"] is None


def test_growth_is_the_power_that_made_it() -> None:
    """The fit of 3 * size ** 0.5 finds both parameters."""
    rows = [{"size": size, "cost": 3.0 * size**0.5} for size in (1.0, 4.0, 100.0)]
    fit = growth(rows)
    assert fit is not None
    assert fit == {"a": pytest.approx(3.0), "b": pytest.approx(0.5), "r2": pytest.approx(1.0)}
    assert growth(rows[:1]) is None
    two = growth(rows[:2])
    assert two is not None
    assert two["r2"] is None


def test_a_line_has_a_base_and_a_cost_of_each() -> None:
    """Memory of streams: 24 kB each on top of 100."""
    fit = line([{"size": size, "cost": 100.0 + 24.0 * size} for size in (10, 100, 10_000)])
    assert fit == {"base": pytest.approx(100.0), "each": pytest.approx(24.0), "r2": 1.0}
    assert line([]) is None


def test_memory_is_judged_by_the_stream() -> None:
    """The aim is the memory per stream at the largest number of streams."""
    axes = {
        "endpoints": [{"size": 8, "cost": 1.0}, {"size": 1_000, "cost": 1.5}],
        "streams": [{"size": 10, "cost": 900.0}, {"size": 10_000, "cost": 250_000.0}],
    }
    suite = {**ABOUT, "axes": axes, "growth": {name: growth(rows) for name, rows in axes.items()}}
    suite |= {"units": dict.fromkeys(axes, "kB"), "line": {"streams": line(axes["streams"])}}
    results = {"suites": {"scale": suite}}
    aim = aims(results)[-1]
    assert (aim.name, aim.got) == ("memory of an open stream, 10,000 of them", "25 kB")
    (section,) = sections(results)
    assert any(text.startswith("Linear fit of streams: 24.9 kB") for text in section.text)


def test_drawn_fleets_are_told_by_what_the_log_tells() -> None:
    """The median and the worst draw of each traffic, with first tokens in the log and without."""
    rows = [
        {"traffic": "agents", "told": told, "mean": mean, "p99": 1.1}
        for told, mean in ((True, 1.0), (True, 1.04), (False, 1.5))
    ]
    (section,) = sections({"suites": {"draws": {**ABOUT, "rows": rows}}})
    assert [list(line) for line in section.tables[0].rows] == [
        ["agents", "yes", "2", "1.02", "1.10", "1.04", "1.10"],
        ["agents", "no", "1", "1.50", "1.10", "1.50", "1.10"],
    ]


def test_canaries_are_told_by_how_they_ended() -> None:
    """Worlds at the margin first, then those that are good or bad."""
    row = {"name": "good", "rate": 20.0, "base": 0.01, "controller": "argo", "runs": 20}
    ends = {"back": 1, "promoted": 18, "undecided": 1}
    rows = [{**row, **ends, "part": part} for part in ("found", "margins")]
    (section,) = sections({"suites": {"canary": {**ABOUT, "rows": rows}}})
    assert [table.title.rsplit(" ", 1)[1] for table in section.tables] == ["margins", "found"]
    line = ["good, 1.00%", "20", "argo", "20", "5.0%", "90.0%", "5.0%"]
    assert [list(line) for line in section.tables[0].rows] == [line]


def test_telemetry_rows_are_read() -> None:
    """The script's table becomes an axis per source."""
    text = "source endpoints\nscrape 8 32 1.2 90 360 20 40\npush 8 8 0.4 50 55 500 900\n"
    assert telemetry_axes(text) == {
        "endpoints scraped": [{"size": 8.0, "cost": 360.0}],
        "endpoints pushed": [{"size": 8.0, "cost": 55.0}],
    }


def test_the_picker_behind_envoy_is_told_beside_a_bare_one() -> None:
    """CPU of real and bare picker is reported, paired by round, without a bound."""
    rows = [
        {"target": target, "bytes": 2_048, "round": turn, "cpu_us": {"picker": cost + turn}}
        for turn in range(2)
        for target, cost in (("none", 300.0), ("bare none", 150.0))
    ]
    suite = {**ABOUT, "closed": rows, "open": []}
    found = {aim.name: aim for aim in aims({"suites": {"overhead": suite}})}
    aim = found["picker CPU over a bare picker's, both behind Envoy, 2 KB, `none`"]
    assert (aim.verdict, aim.got) == ("reported", "2.00x: 300 µs against 150")
