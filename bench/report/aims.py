"""What was aimed at and what came out, from results alone. Pure.

An aim is reached, missed by so much, or not measured; no verdict is written by hand. Where an aim
is missed, ``why`` says what the same results show about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.suites.summary import median_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TIDEGATE: Final = "tidegate"
BARE_RATIO: Final = 1.25
OWN_US: Final = 40.0
ADDED_P99_MS: Final = 3.0
THROUGHPUT_RATIO: Final = 1.3
FLAT: Final = 2.0
WORKERS_RATIO: Final = 1.1
STREAM_KB: Final = 30.0
REPORTED: Final = "reported"
"""What is wanted of a number that is only to be told."""
NO_WORSE: Final = 1.02
"""Where prompts share nothing: so much above the best peer counts as no worse."""


@dataclass(frozen=True, slots=True)
class Aim:
    """One aim with its verdict."""

    name: str
    wanted: str
    got: str
    reached: bool | None
    """``None`` = not measured."""
    why: str = ""

    @property
    def verdict(self) -> str:
        """Return the verdict in a word."""
        if self.reached is None:
            return "not measured"
        if self.wanted == REPORTED:
            return REPORTED
        return "reached" if self.reached else "missed"


def aims(results: Mapping[str, Any]) -> list[Aim]:
    """Return every aim, in order."""
    suites = {name: suite for name, suite in results["suites"].items() if "failed" not in suite}
    return [
        *_picker(suites.get("picker")),
        _added_p99(suites.get("overhead")),
        _throughput(suites.get("throughput"), "vllm-cache_aware", 32_768, THROUGHPUT_RATIO),
        _throughput(suites.get("throughput"), "vllm-cache_aware", 2_048, None),
        _throughput(suites.get("throughput"), "sglang-cache_aware", 32_768, None),
        _throughput(suites.get("throughput"), "sglang-cache_aware", 2_048, None),
        *_fleet(suites.get("fleet")),
        _faults(suites.get("fleet")),
        *_scale(suites.get("scale")),
    ]


def below(name: str, value: float | None, most: float, unit: str, why: str = "") -> Aim:
    """Return the verdict on a number that is to be at most so much."""
    wanted = f"at most {most:g}{unit}"
    if value is None:
        return Aim(name, wanted, "-", None)
    reached = value <= most
    got = f"{value:.3g}{unit}"
    if not reached:
        got += f", {value / most - 1:.0%} above"
    return Aim(name, wanted, got, reached, "" if reached else why)


# --- Each suite's aims ----------------------------------------------------------------------------


def _picker(suite: Mapping[str, Any] | None) -> list[Aim]:
    rows = {row["mode"]: row for row in suite["rows"]} if suite else {}
    made = []
    for mode in rows or ("none", "peek"):
        row = rows.get(mode)
        why = ""
        if row:
            extra = row["picker_us"] - row["bare_us"]
            why = (
                f"{extra:.0f} µs above the bare picker's {row['bare_us']:g},"
                f" of which own Python {row['ours_us']:g}"
            )
        ratio = row["ratio"] if row else None
        own = row["ours_us"] if row else None
        made.append(
            below(f"picker CPU over a bare picker's, `{mode}`", ratio, BARE_RATIO, "x", why)
        )
        made.append(below(f"own logic per exchange, `{mode}`", own, OWN_US, " µs"))
    workers = (suite or {}).get("workers")
    ratio = workers["cpu_ratio"] if workers else None
    made.append(below("picker CPU per request, two workers over one", ratio, WORKERS_RATIO, "x"))
    return made


def _added_p99(suite: Mapping[str, Any] | None) -> Aim:
    name = "added p99 at 50 % load (open loop, `peek`, worst size)"
    if not suite:
        return below(name, None, ADDED_P99_MS, " ms")
    worst: tuple[float, int] | None = None
    for size in {row["bytes"] for row in suite["open"]}:
        rows = [row for row in suite["open"] if row["bytes"] == size]
        with_ = median_of([row for row in rows if row["target"] == "peek"], "ms", "p99")
        alone = median_of([row for row in rows if row["target"] == "envoy alone"], "ms", "p99")
        if with_ is not None and alone is not None:
            added = with_["median"] - alone["median"]
            worst = max(worst or (added, size), (added, size))
    lag = max(row["lag_p99_ms"] for row in suite["open"])
    why = (
        f"bodies of {worst[1] // 1024} KB; the load generator itself was late by up to {lag:.1f} ms"
        if worst
        else ""
    )
    return below(name, worst[0] if worst else None, ADDED_P99_MS, " ms", why)


def _throughput(suite: Mapping[str, Any] | None, peer: str, size: int, least: float | None) -> Aim:
    name = f"requests/s over {peer}'s, {size // 1024} KB"
    wanted = f"at least {least:g}x" if least else REPORTED
    rows = [row for row in (suite or {}).get("rows", ()) if row["bytes"] == size]
    ours = [row for row in rows if row["contender"] == TIDEGATE]
    theirs = [row for row in rows if row["contender"] == peer]
    mine, other = median_of(ours, "per_s"), median_of(theirs, "per_s")
    if mine is None or other is None:
        return Aim(name, wanted, "-", None)
    ratio = mine["median"] / other["median"]
    got = f"{ratio:.2f}x ({mine['median']:.0f} against {other['median']:.0f})"
    if least is None:
        return Aim(name, wanted, got, True)
    if ratio >= least:
        return Aim(name, wanted, got, True)
    spent = ", ".join(f"{key} {ours[0]['cpu_us'][key]:.0f}" for key in ours[0]["cpu_us"])
    total = median_of(theirs, "cpu_us_all")
    against = f" against {total['median']:.0f}" if total else ""
    return Aim(
        name,
        wanted,
        f"{got}, {1 - ratio / least:.0%} below",
        False,
        f"µs per request: {spent}{against}",
    )


def _fleet(suite: Mapping[str, Any] | None) -> list[Aim]:
    name = "fleet: better than every peer"
    if not suite:
        return [Aim(name, "TTFT mean and p99, e2e and in time", "-", None)]
    made = []
    cells: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for row in suite["rows"]:
        if not row["fault"]:
            cells.setdefault((row["workload"], row["load"]), []).append(row)
    for (workload, load), rows in cells.items():
        rich = suite["workloads"][workload]["cache_rich"]
        wanted = "better than every peer" if rich else f"within {NO_WORSE - 1:.0%} of the best peer"
        for label, path in (
            ("TTFT mean", ("ttft", "mean")),
            ("TTFT p99", ("ttft", "p99")),
            ("e2e mean", ("e2e", "mean")),
            ("in time", ("goodput",)),
        ):
            made.append(
                _beside_peers(f"{workload} at {load:.0%}: {label}", wanted, rows, path, rich)
            )
    return made


def _beside_peers(
    name: str, wanted: str, rows: Sequence[Mapping[str, Any]], path: tuple[str, ...], rich: bool
) -> Aim:
    more_is_better = path == ("goodput",)
    values = {}
    for contender in {row["contender"] for row in rows}:
        if contender.startswith(f"{TIDEGATE}-"):
            continue  # Tidegate in another dialect is no peer
        found = median_of([row for row in rows if row["contender"] == contender], *path)
        if found is not None:
            values[contender] = found["median"]
    ours = values.pop(TIDEGATE, None)
    if ours is None or not values:
        return Aim(name, wanted, "-", None)
    best = (max if more_is_better else min)(values, key=lambda each: values[each])
    peer = values[best]
    if more_is_better:
        # All peers in time is as good as it gets.
        reached = ours > peer or ours == peer == 1.0 or (not rich and ours * NO_WORSE >= peer)
        got = f"{ours:.1%}; {best} {peer:.1%}"
    else:
        reached = ours < peer if rich else ours <= peer * NO_WORSE
        got = f"{ours:.3g} s; {best} {peer:.3g} s ({ours / peer - 1:+.1%})"
    return Aim(name, wanted, got, reached, "" if reached else f"{best} is ahead")


def _faults(suite: Mapping[str, Any] | None) -> Aim:
    name, wanted = "fault phases: requests lost whose answer had not begun", "0"
    rows = [
        row
        for row in (suite or {}).get("rows", ())
        if row["fault"] and row["contender"] == TIDEGATE
    ]
    if not rows:
        return Aim(name, wanted, "-", None)
    lost = sum(row["failed_before"] for row in rows)
    begun = sum(row["failed_begun"] for row in rows)
    got = f"{lost} of {sum(row['requests'] for row in rows)}; {begun} cut in their answer"
    return Aim(name, wanted, got, lost == 0, "" if lost == 0 else _kinds(rows))


def _kinds(rows: Iterable[Mapping[str, Any]]) -> str:
    return "; ".join(f"{row['fault']}: {row['errors']}" for row in rows if row["errors"])


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
        below(f"{streams}, {most['size']:,} of them", most["cost"], STREAM_KB, " kB"),
    ]
