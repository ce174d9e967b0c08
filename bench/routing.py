"""Benchmark of all routing policies on all traffic: the table of docs/reports/routing.md.

    python bench/routing.py [--quick] [--jobs 2] [--out DIR] [--docs docs/reports/routing.md]

Simulates the suite (`bench/simulate/suite/plan.py`) and writes results.md, results.json,
policies.csv (kept in results/VERSION/routing), index.html and plots to the folder; with
--docs also the comparisons of `auto` between the markers of that file.
Stored cells are not run again, so an interrupted run resumes. A change of the routing code
invalidates only the cells of the picker's policies.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench.simulate.page import page
from bench.simulate.plots import require_matplotlib, write_pngs
from bench.simulate.report import as_json
from bench.simulate.suite.document import MarkersError, replaced
from bench.simulate.suite.plan import SUITES, narrowed
from bench.simulate.suite.run import Suite
from bench.simulate.suite.store import Store
from bench.simulate.suite.tables import comparisons, markdown, records, reports

ROOT = Path(__file__).resolve().parents[1]


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Tables of every routing policy.")
    parser.add_argument("--quick", action="store_true", help="run a small suite (two minutes)")
    parser.add_argument("--only", default="", help="comma-separated names of chapters")
    parser.add_argument("--policies", default="", help="comma-separated names, beside auto")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--traces", type=Path, default=ROOT / "bench" / "traces")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "routing")
    parser.add_argument("--docs", type=Path, help="Markdown file with the markers")
    return parser.parse_args()


def commit() -> str:
    """Return the commit of the checkout; empty outside a checkout."""
    git = shutil.which("git")
    if git is None:
        return ""
    done = subprocess.run(  # noqa: S603 - fixed words
        [git, "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def main() -> int:
    """Run the suite and write the results; return the exit code."""
    args = arguments()
    console = Console(stderr=True)
    require_matplotlib()
    chapters = SUITES["quick" if args.quick else "full"]()
    if args.only:
        wanted = args.only.split(",")
        chapters = tuple(each for each in chapters if each.name in wanted)
    if args.policies:
        chapters = narrowed(chapters, args.policies.split(","))
    if args.docs:
        replaced(args.docs.read_text("utf-8"), "")  # fail on missing markers before the run
    started = time.monotonic()
    suite = Suite(chapters, args.traces, Store(args.out / "cells.jsonl"), args.jobs)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        tasks = []
        suite.run(
            lambda text, total: tasks.append(progress.add_task(text, total=total)),
            lambda: progress.advance(tasks[-1]),
        )
    sections = suite.sections()
    made_of = f"Made at commit {known}.\n\n" if (known := commit()) else ""
    made = reports(sections)
    (args.out / "results.md").write_text(f"{made_of}{markdown(sections)}\n", "utf-8")
    with (args.out / "policies.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(records(sections))
    (args.out / "results.json").write_text(json.dumps([as_json(each) for each in made]), "utf-8")
    (args.out / "index.html").write_text(page(*made), "utf-8")
    for each, name in zip(made, dict.fromkeys(one.chapter.name for one in sections), strict=True):
        write_pngs(each, args.out / "plots", name)
    if args.docs:
        text = f"{made_of}{comparisons(sections)}".strip()
        args.docs.write_text(replaced(args.docs.read_text("utf-8"), text), "utf-8")
    console.print(f"{len(sections)} tables in {time.monotonic() - started:.0f} s: {args.out}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (MarkersError, OSError) as error:
        sys.exit(str(error))
