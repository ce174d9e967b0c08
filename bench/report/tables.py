"""Conversion of results to sections of text, tables and curves for all report formats. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.report.fleet_tables import write_fleet
from bench.report.parts import (
    UNKNOWN,
    Bars,
    Curve,
    ReportSection,
    Table,
    grouped,
    median,
    name_missing,
    number,
    span,
)
from bench.suites.summary import median_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def sections(results: Mapping[str, Any]) -> list[ReportSection]:
    """Return one section per measured suite, in the order of the suites."""
    made = []
    for name, write in _WRITERS.items():
        suite = results["suites"].get(name)
        if suite is None:
            continue
        section = ReportSection(name)
        at = f" at {suite['commit']}" if "commit" in suite else ""
        section.text.append(
            f"`{suite['command']}`{at}, {suite['date']}, {suite['took_s']:.0f} s,"
            f" {suite['form']} form."
        )
        if "stopped" in suite:
            section.text.append(f"STOPPED: {suite['stopped']}; results up to then follow.")
        if "failed" in suite:
            section.text.append(f"FAILED: {suite['failed']}")
        else:
            write(suite, section)
        made.append(section)
    return made


def _kb(size: int) -> str:
    return f"{size // 1024} KB"


# --- Suites ---------------------------------------------------------------------------------------


def _throughput(suite: Mapping[str, Any], section: ReportSection) -> None:
    section.text.append(
        f"{suite['upstreams']} instant upstreams, {suite['connections']} connections in a closed"
        f" loop, {suite['rounds']} rounds of {suite['seconds']:g} s. CPU in µs per request."
    )
    name_missing(suite, section)
    heads = ("contender", "req/s", "p50 ms", "p99 ms", "CPU, its processes", "CPU, all", "client")
    for (size,), rows in grouped(suite["rows"], "bytes").items():
        lines, bars = [], {}
        for (name,), runs in grouped(rows, "contender").items():
            rate = median_of(runs, "per_s")
            if rate is not None:
                bars[name] = rate
            processes = ", ".join(
                f"{each} {number(median(runs, 'cpu_us', each), 0)}" for each in runs[0]["cpu_us"]
            )
            lines.append(
                (
                    name,
                    span(rate, 0),
                    span(median_of(runs, "ms", "p50")),
                    span(median_of(runs, "ms", "p99")),
                    processes,
                    span(median_of(runs, "cpu_us_all"), 0),
                    number(median(runs, "client_cpu_us"), 0),
                )
            )
        section.tables.append(Table(f"{_kb(size)} requests", heads, lines))
        section.plots.append(Bars(f"Requests per second, {_kb(size)}", "requests/s", bars))


def _overhead(suite: Mapping[str, Any], section: ReportSection) -> None:
    section.text.append(
        f"{suite['rounds']} rounds; `+` is the increase over Envoy alone in the same rounds. The"
        f" open loop sends at {suite['load']:.0%} of the throughput of `peek`; `late` is the p99"
        " lag of the load client. CPU in µs per request."
    )
    heads = ("route", "req/s", "p50 ms", "p99 ms", "p99.9 ms", "+p50", "+p99", "+p99.9")
    for loop in ("closed", "open", "grpc"):
        title = {"closed": "HTTP, closed loop", "open": "HTTP, open loop", "grpc": "gRPC, closed"}
        for (size,), rows in grouped(suite[loop], "bytes").items():
            lines = []
            alone = [row for row in rows if row["target"] == "envoy alone"]
            for (name,), runs in grouped(rows, "target").items():
                plus = [
                    number(median(runs, "ms", key) - median(alone, "ms", key))
                    for key in ("p50", "p99", "p999")
                ]
                lines.append(
                    (
                        name,
                        span(median_of(runs, "per_s"), 0),
                        *(span(median_of(runs, "ms", key)) for key in ("p50", "p99", "p999")),
                        *plus,
                        number(median(runs, "cpu_us", "envoy"), 0),
                        number(median(runs, "cpu_us", "picker"), 0),
                        number(median(runs, "lag_p99_ms")) if loop == "open" else UNKNOWN,
                    )
                )
            section.tables.append(
                Table(f"{title[loop]}, {_kb(size)}", (*heads, "Envoy", "picker", "late ms"), lines)
            )
    memory = ", ".join(f"{name} {value:.0f} MB" for name, value in suite["rss_mb"].items())
    section.text.append(f"Resident memory: {memory}.")


def _picker(suite: Mapping[str, Any], section: ReportSection) -> None:
    heads = ("mode", "transport", "compiled", "picker µs", "bare µs", "ratio", "own Python µs")
    keys = ("picker_us", "bare_us", "ratio", "ours_us", "exchanges_per_s")
    lines = [
        (
            *(row["mode"], row["transport"], "yes" if row["compiled"] else "no"),
            *(f"{row[key]:g}" for key in keys),
        )
        for row in suite["rows"]
    ]
    title = "CPU of one exchange compared with a bare `grpc.aio` picker"
    section.tables.append(Table(title, (*heads, "exchanges/s"), lines))
    if "workers" not in suite:
        return
    heads = ("workers", "req/s", "p50 ms", "p99 ms", "Envoy µs", "pickers µs")
    keys = ("requests_per_s", "p50_ms", "p99_ms", "envoy_us", "picker_us")
    lines = [
        (count, *(number(row[key], 0 if key == "requests_per_s" else 1) for key in keys))
        for count, row in suite["workers"]["by_workers"].items()
    ]
    section.tables.append(Table("Workers of one picker, closed loop, 2 KB", heads, lines))


def _real(suite: Mapping[str, Any], section: ReportSection) -> None:
    section.text.append(
        f"{suite['replicas']} real Tritons, {suite['rate']:g} requests/s; wall seconds, first token"
        f" within {suite['slo_s']:g} s."
    )
    heads = ("policy", "TTFT mean", "p50", "p90", "p99", "e2e mean", "p99", "in time", "errors")
    lines = []
    for (name,), runs in grouped(suite["rows"], "contender").items():
        in_time = median_of(runs, "goodput")
        lines.append(
            (
                name,
                *(span(median_of(runs, "ttft", key), 3) for key in ("mean", "p50", "p90", "p99")),
                *(span(median_of(runs, "e2e", key), 3) for key in ("mean", "p99")),
                UNKNOWN if in_time is None else f"{in_time['median']:.1%}",
                str(sum(sum(run["errors"].values()) for run in runs)),
            )
        )
    section.tables.append(Table("toy-llm, conversations", heads, lines))


def _abuse(suite: Mapping[str, Any], section: ReportSection) -> None:
    section.text.append(
        f"{suite['replicas']} real Tritons, {suite['rate']:g} honest requests/s beside one abusive"
        f" client; in time: first token within {suite['slo_s']:g} s, failed requests are late."
    )
    heads = ("contender", "abuse", "in time", "TTFT p99", "errors", "replicas died")
    lines = []
    for (contender, abuse), runs in grouped(suite["rows"], "contender", "abuse").items():
        in_time = median_of(runs, "goodput")
        lines.append(
            (
                contender,
                abuse,
                UNKNOWN if in_time is None else f"{in_time['median']:.1%}",
                span(median_of(runs, "ttft", "p99"), 3),
                str(sum(sum(run["errors"].values()) for run in runs)),
                str(sum(run["died"] for run in runs)),
            )
        )
    section.tables.append(Table("Honest clients beside an abusive one", heads, lines))


def _control(suite: Mapping[str, Any], section: ReportSection) -> None:
    title = f"One Envoy and one picker, {suite['changes']} changes each; ms, p50 / p99"
    section.tables.append(Table(title, suite["envoy"]["heads"], suite["envoy"]["rows"]))
    clients = suite["clients"]
    section.tables.append(Table("Simulated delta clients", clients["heads"], clients["rows"]))
    if "fixed" in suite:
        fixed = suite["fixed"]
        section.tables.append(Table("A change without clients", fixed["heads"], fixed["rows"]))
        section.text.append(f"A bare echo stream: {suite['echo_us']} µs per message and answer.")


def _scale(suite: Mapping[str, Any], section: ReportSection) -> None:
    section.text.append(
        "Growth: cost = a * size^b; b = 0 is constant, 1 linear. r² is that of the logarithms, and"
        " low for a constant cost."
    )
    lines = []
    for name, rows in suite["axes"].items():
        fit = suite["growth"][name] or {}
        cells = ", ".join(f"{row['size']:g}: {row['cost']:,.1f}" for row in rows)
        unit = suite["units"][name]
        lines.append((name, unit, cells, number(fit.get("b")), number(fit.get("r2"), 3)))
        section.plots.append(
            Curve(f"{unit} against {name}", name, unit, rows, suite["growth"][name])
        )
    heads = ("size", "cost", "measured", "b", "r²")
    section.tables.append(Table("Cost against size", heads, lines))
    for name, fit in suite.get("line", {}).items():
        if fit is not None:
            section.text.append(
                f"Linear fit of {name}: {fit['each']:.1f} kB each and {fit['base']:,.0f} kB"
                f" at 0, r² {number(fit['r2'], 4)}."
            )


def _draws(suite: Mapping[str, Any], section: ReportSection) -> None:
    heads = ("traffic", "log", "draws", "median: mean", "p99", "worst: mean", "p99")
    lines = []
    for (traffic, told), rows in grouped(suite["rows"], "traffic", "told").items():
        middle = [number(median(rows, key)) for key in ("mean", "p99")]
        worst = [number(max(row[key] for row in rows)) for key in ("mean", "p99")]
        lines.append((traffic, "yes" if told else "no", f"{len(rows)}", *middle, *worst))
    title = "First tokens of `auto` on drawn fleets, as multiples of exact knowledge's, simulated"
    section.tables.append(Table(title, heads, lines))


def _canary(suite: Mapping[str, Any], section: ReportSection) -> None:
    heads = ("world", "sessions/s", "by", "runs", "rolled back", "promoted", "undecided")
    for part in sorted({row["part"] for row in suite["rows"]}, reverse=True):
        lines = []
        for row in suite["rows"]:
            if row["part"] == part:
                ends = [
                    f"{row[end] / row['runs']:.1%}" for end in ("back", "promoted", "undecided")
                ]
                what = (f"{row['name']}, {row['base']:.2%}", f"{row['rate']:g}", row["controller"])
                lines.append((*what, f"{row['runs']}", *ends))
        section.tables.append(Table(f"How canaries ended, simulated: {part}", heads, lines))


_WRITERS: dict[str, Callable[[Mapping[str, Any], ReportSection], None]] = {
    "throughput": _throughput,
    "overhead": _overhead,
    "picker": _picker,
    "fleet": write_fleet,
    "real": _real,
    "abuse": _abuse,
    "control": _control,
    "scale": _scale,
    "draws": _draws,
    "canary": _canary,
}
