"""Targets of the benchmark and their verdicts, computed from the results. Pure functions.

A target is reached, missed, undecided if the interval contains its bound, or not measured. For a
missed target, ``why`` explains it from the same results. Comparisons of runs have an interval;
other figures are single numbers.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from bench.report.aim import NOTHING, REPORTED, Aim, below
from bench.report.fleet_aims import TIDEGATE, fleet_aims
from bench.report.paired import Compared, by_seed, difference, ratio
from bench.suites.summary import median_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

COMPILED: Final = f"{TIDEGATE}-compiled"
BARE_RATIO: Final = 1.25
OWN_US: Final = 40.0
ADDED_P99_MS: Final = 3.0
THROUGHPUT_RATIO: Final = 1.3
FLAT: Final = 2.0
WORKERS_RATIO: Final = 1.1
STREAM_KB: Final = 30.0


def aims(results: Mapping[str, Any]) -> list[Aim]:
    """Return all targets, in order."""
    suites = {name: suite for name, suite in results["suites"].items() if "failed" not in suite}
    return [
        *_picker(suites.get("picker")),
        *(_behind_envoy(suites.get("overhead"), mode) for mode in ("none", "peek")),
        _added_p99(suites.get("overhead")),
        *_throughput(suites.get("throughput"), "vllm-cache_aware", 32_768, THROUGHPUT_RATIO),
        *_throughput(suites.get("throughput"), "vllm-cache_aware", 2_048, None),
        *_throughput(suites.get("throughput"), "sglang-cache_aware", 32_768, None),
        *_throughput(suites.get("throughput"), "sglang-cache_aware", 2_048, None),
        *fleet_aims(suites.get("fleet")),
        *_scale(suites.get("scale")),
    ]


# --- Targets by suite -----------------------------------------------------------------------------


def _picker(suite: Mapping[str, Any] | None) -> list[Aim]:
    cost, logic = "picker CPU over a bare `grpc.aio` picker's", "own logic per exchange"
    made = []
    for row in suite["rows"] if suite else ():
        form = row["transport"] + (", compiled" if row["compiled"] else "")
        what = f"`{row['mode']}`, {form}"
        why = f"{row['picker_us']:g} µs against {row['bare_us']:g}; own Python {row['ours_us']:g}"
        made.append(below(f"{cost}, {what}", row["ratio"], BARE_RATIO, "x", why))
    # The transport does not change decisions: one row per build.
    builds = {(row["mode"], row["compiled"]): row for row in (suite["rows"] if suite else ())}
    for (mode, compiled), row in builds.items():
        name = f"{logic}, `{mode}`{', compiled' if compiled else ''}"
        made.append(below(name, row["ours_us"], OWN_US, " µs"))
    if not made:
        made += [below(cost, None, BARE_RATIO, "x"), below(logic, None, OWN_US, " µs")]
    workers = (suite or {}).get("workers")
    ratio = workers["cpu_ratio"] if workers else None
    made.append(below("picker CPU per request, two workers over one", ratio, WORKERS_RATIO, "x"))
    return made


def _behind_envoy(suite: Mapping[str, Any] | None, mode: str) -> Aim:
    name = f"picker CPU over a bare picker's, both behind Envoy, 2 KB, `{mode}`"
    spent = {
        target: by_seed(
            [
                row
                for row in (suite or {}).get("closed", ())
                if row["target"] == target and row["bytes"] == 2_048
            ],
            *("cpu_us", "picker"),
            seed="round",
        )
        for target in (mode, f"bare {mode}")
    }
    found = ratio(spent[mode], spent[f"bare {mode}"])
    if found is None:
        return Aim(name, REPORTED, NOTHING, None)
    ours, bare = (fmean(each.values()) for each in spent.values())
    return Aim(name, REPORTED, f"{found.mean:.2f}x: {ours:.0f} µs against {bare:.0f}", True)


def _added_p99(suite: Mapping[str, Any] | None) -> Aim:
    name = "added p99 at 50 % load (open loop, `peek`, worst size)"
    wanted = f"at most {ADDED_P99_MS:g} ms"
    found: dict[int, Compared] = {}
    for size in {row["bytes"] for row in (suite or {}).get("open", ())}:
        rows = [row for row in (suite or {})["open"] if row["bytes"] == size]
        values = {
            target: by_seed(
                [row for row in rows if row["target"] == target], "ms", "p99", seed="round"
            )
            for target in ("peek", "envoy alone")
        }
        compared = difference(values["peek"], values["envoy alone"])
        if compared is not None:
            found[size] = compared
    if not suite or not found:
        return Aim(name, wanted, NOTHING, None)
    size = max(found, key=lambda each: found[each].mean)
    worst = found[size]
    lag = max(row["lag_p99_ms"] for row in suite["open"])
    why = f"bodies of {size // 1024} KB; the load generator itself was late by up to {lag:.1f} ms"
    got = f"{worst.mean:.3g} ms"
    if worst.low is not None:
        got += f" ({worst.low:.3g} to {worst.high:.3g}; {worst.seeds} rounds)"
    return Aim(name, wanted, got, worst.below(ADDED_P99_MS), why)


def _throughput(
    suite: Mapping[str, Any] | None, peer: str, size: int, least: float | None
) -> Iterator[Aim]:
    """Judge the uncompiled picker, and the compiled one if it was measured."""
    rows = [row for row in (suite or {}).get("rows", ()) if row["bytes"] == size]
    theirs = [row for row in rows if row["contender"] == peer]
    name = f"requests/s over {peer}'s, {size // 1024} KB"
    yield _faster(name, [row for row in rows if row["contender"] == TIDEGATE], theirs, least)
    compiled = [row for row in rows if row["contender"] == COMPILED]
    if compiled:
        yield _faster(f"{name}, compiled", compiled, theirs, least)


def _faster(name: str, ours: list[Any], theirs: list[Any], least: float | None) -> Aim:
    wanted = f"at least {least:g}x" if least else REPORTED
    found = ratio(
        by_seed(ours, "per_s", seed="round"),
        by_seed(theirs, "per_s", seed="round"),
    )
    mine, other = median_of(ours, "per_s"), median_of(theirs, "per_s")
    if found is None or mine is None or other is None:
        return Aim(name, wanted, NOTHING, None)
    got = f"{found.mean:.2f}x"
    if found.low is not None:
        got += f" ({found.low:.2f} to {found.high:.2f}; {found.seeds} rounds)"
    got += f": {mine['median']:.0f} against {other['median']:.0f}"
    if least is None:
        return Aim(name, wanted, got, True)
    less = found.below(least)
    reached = None if less is None else not less
    if reached:
        return Aim(name, wanted, got, True)
    spent = ", ".join(f"{key} {ours[0]['cpu_us'][key]:.0f}" for key in ours[0]["cpu_us"])
    total = median_of(theirs, "cpu_us_all")
    against = f" against {total['median']:.0f}" if total else ""
    short = f", {1 - found.mean / least:.0%} below" if found.mean < least else ""
    return Aim(name, wanted, got + short, reached, f"µs per request: {spent}{against}")


def _scale(suite: Mapping[str, Any] | None) -> list[Aim]:
    flat, streams = "cost of a decision, 1,000 endpoints over 8", "memory of an open stream"
    if not suite:
        return [below(flat, None, FLAT, "x"), below(streams, None, STREAM_KB, " kB")]
    ends = {row["size"]: row["cost"] for row in suite["axes"]["endpoints"]}
    held = suite["axes"]["streams"]
    most = max(held, key=lambda row: row["size"])
    why = f"µs by endpoints: {', '.join(f'{size:g}: {cost:.0f}' for size, cost in ends.items())}"
    return [
        below(flat, ends[1_000] / ends[8], FLAT, "x", why),
        below(
            f"{streams}, {most['size']:,} of them", most["cost"] / most["size"], STREAM_KB, " kB"
        ),
    ]
