"""Results of a suite as Markdown, and as reports for the HTML page and the plots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.simulate.measure import METRICS, MeanEstimate, estimate, paired
from bench.simulate.report import Report, Row
from bench.simulate.suite.plan import AUTO

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.simulate.experiment import Result
    from bench.simulate.suite.run import Part, SuiteSection

_TIMES: Final = ("ttft_mean", "ttft_p50", "ttft_p90", "ttft_p99", "e2e_mean", "e2e_p50", "e2e_p99")
_HEADS: Final = (
    "policy",
    *("TTFT mean", "p50", "p90", "p99", "e2e mean", "p50", "p99"),
    *("hits", "spread", "in time", "shed", "lost"),
    *("TTFT mean vs auto", "p99 vs auto", "e2e p99 vs auto"),
)
_COLUMNS: Final = (
    "policy",
    *(f"{name}_s" for name in _TIMES),
    *("hits", "spread", "in_time", "shed", "lost"),
    *("ttft_mean_vs_auto", "ttft_p99_vs_auto", "e2e_p99_vs_auto"),
)
NONE: Final = "-"
TOLERANCE: Final = 0.03
"""Relative difference up to which ``auto`` counts as no worse than another policy."""


def values(runs: Sequence[Result], metric: str) -> list[float | None]:
    """Return one metric of several runs, in the order of their seeds."""
    return [getattr(run.metrics, metric) for run in runs]


def base(section: SuiteSection) -> Sequence[Result]:
    """Return the runs of a section's baseline."""
    return section.parts[0].runs[AUTO]


def rows(section: SuiteSection) -> list[Row]:
    """Return one row per policy and arm, paired by seed with ``auto`` of the first arm."""
    found = []
    for part in section.parts:
        for policy, runs in part.runs.items():
            label = f"{policy}, {part.arm.label}" if part.arm.label else policy
            found.append(
                Row(
                    label,
                    section.load,
                    section.rate,
                    {name: estimate(values(runs, name)) for name in METRICS},
                    {
                        name: paired(values(runs, name), values(base(section), name))
                        for name in METRICS
                    },
                )
            )
    return found


def reports(sections: Iterable[SuiteSection]) -> list[Report]:
    """Return one report per chapter with all its loads."""
    made: dict[str, Report] = {}
    for section in sections:
        chapter = section.chapter
        before = made.get(chapter.name)
        made[chapter.name] = Report(
            chapter.title,
            section.jobs,
            section.native_rate,
            chapter.arms[0].scenario,
            chapter.seeds,
            section.slo_s,
            section.saturation,
            AUTO,
            (*(before.rows if before else ()), *rows(section)),
        )
    return list(made.values())


def records(sections: Iterable[SuiteSection]) -> list[list[str]]:
    """Return the rows of all tables, below their titles, with traffic, load and rate: for a CSV."""
    heads = ["traffic", "load", "requests_per_s", *_COLUMNS]
    return [
        heads,
        *(
            [section.chapter.title, f"{section.load:.0%}", f"{section.rate:.3g}", *_cells(row)]
            for section in sections
            for row in rows(section)
        ),
    ]


def markdown(sections: Sequence[SuiteSection]) -> str:
    """Return all results: the targets, then each chapter, collapsed."""
    parts = [comparisons(sections)]
    seen: set[str] = set()
    for section in sections:
        chapter = section.chapter
        if chapter.name not in seen:
            if seen:
                parts.append("</details>\n")
            seen.add(chapter.name)
            parts.append(f"<details><summary>{chapter.title}</summary>\n")
            if chapter.about:
                parts.append(_wrapped(chapter.about) + "\n")
        parts.append(_table(section))
    parts.append("</details>")
    return "\n".join(parts)


def _table(section: SuiteSection) -> str:
    hits = base(section)[0].metrics.hit_ideal
    title = (
        f"**{section.load:.0%} = {section.rate:.3g} requests/s**, {section.jobs:,} requests,"
        f" {section.chapter.seeds} seeds; one unbounded cache would hit {hits:.1%}\n"
    )
    lines = [
        title,
        "| " + " | ".join(_HEADS) + " |",
        "|---" * len(_HEADS) + "|",
    ]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows(section)]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> list[str]:
    known = row.metrics
    times = [_seconds(known[name], wide=name == "ttft_mean") for name in _TIMES]
    return [
        row.policy,
        *times,
        _form(known["hit_ratio"], "{:.1%}"),
        _form(known["spread_tokens"], "{:.2f}"),
        _form(known["goodput_own"], "{:.2%}"),
        _form(known["shed"], "{:.2%}"),
        _form(known["lost"], "{:.2%}"),
        *(difference(row.versus[name]) for name in ("ttft_mean", "ttft_p99", "e2e_p99")),
    ]


def _seconds(known: MeanEstimate | None, *, wide: bool) -> str:
    if known is None:
        return NONE
    text = f"{known.mean:.3f}" if known.mean < 1 else f"{known.mean:.2f}"
    return f"{text} ±{(known.high - known.low) / 2:.2g}" if wide else text


def _form(known: MeanEstimate | None, form: str) -> str:
    return NONE if known is None else form.format(known.mean)


def difference(known: MeanEstimate | None) -> str:
    """Format a relative difference with its interval."""
    if known is None:
        return NONE
    if known.low == known.high == 0.0:
        return "="
    return f"{known.mean:+.1%} [{known.low:+.1%}, {known.high:+.1%}]"


# --- Targets ------------------------------------------------------------------------------------

_RIVALS: Final = ("oracle", "probe")
_BEST_OF: Final = ("e2e_p50", "e2e_p99", "goodput_own")


def comparisons(sections: Sequence[SuiteSection]) -> str:
    """Return the comparisons of ``auto`` with its reference policies, one line per section."""
    heads = (
        "traffic, load",
        *("TTFT mean vs oracle", "vs probe", "TTFT p99 vs oracle", "vs probe"),
        *("e2e p50 vs best", "e2e p99 vs best", "in time vs best", "TTFT mean vs least-in-flight"),
        "spread",
    )
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    missed = held = 0
    for section in sections:
        if not section.chapter.judged:
            continue
        part = section.parts[0]
        own = base(section)
        cells = [f"{section.chapter.title}, {section.load:.0%}"]
        for metric in ("ttft_mean", "ttft_p99"):
            for rival in _RIVALS:
                known = part.runs.get(rival)
                cells.append(NONE if known is None else judged(own, known, metric)[1])
        for metric in _BEST_OF:
            name, rivals = best(part, metric)
            cells.append(f"{judged(own, rivals, metric)[1]} {name}")
        least = part.runs.get("least-in-flight")
        cells.append(
            NONE
            if least is None
            else difference(paired(values(own, "ttft_mean"), values(least, "ttft_mean")))
        )
        cells.append(_form(estimate(values(own, "spread_tokens")), "{:.2f}"))
        lines.append("| " + " | ".join(cells) + " |")
        bold = sum(cell.startswith("**") for cell in cells[1:8])
        missed += bold
        held += sum(cell != NONE for cell in cells[1:8]) - bold
    if missed + held == 0:
        return ""
    return (
        _wrapped(
            f"`auto` against others, paired by seed, with 95 % intervals: {held} of"
            f" {held + missed} comparisons meet the target (no worse by more than {TOLERANCE:.0%},"
            " or inside the interval); the others are bold. Above 0 is slower; in the column *in"
            " time*, below 0 is worse. *best* is the best other policy that ran, with its name."
        )
        + "\n\n"
        + "\n".join(lines)
        + "\n"
    )


def judged(own: Sequence[Result], other: Sequence[Result], metric: str) -> tuple[bool, str]:
    """Return whether runs are no worse than others, and the formatted difference, bold if worse."""
    found = paired(values(own, metric), values(other, metric))
    if found is None:
        return True, NONE
    if metric == "goodput_own":
        holds = found.mean >= -TOLERANCE or found.high >= 0.0
    else:
        holds = found.mean <= TOLERANCE or found.low <= 0.0
    return holds, difference(found) if holds else f"**{difference(found)}**"


def best(part: Part, metric: str) -> tuple[str, Sequence[Result]]:
    """Return the best policy other than ``auto`` by one metric."""
    sign = -1.0 if metric == "goodput_own" else 1.0

    def rank(policy: str) -> float:
        found = estimate(values(part.runs[policy], metric))
        return float("inf") if found is None else sign * found.mean

    name = min((each for each in part.runs if each != AUTO), key=rank)
    return name, part.runs[name]


def _wrapped(text: str, width: int = 100) -> str:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])
