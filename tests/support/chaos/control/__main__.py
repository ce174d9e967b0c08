"""Lets something happen at each point of each script: ``python -m support.chaos.control``.

With ``--seed`` it is another run of each; ``--every 3`` takes each third point.
"""

from __future__ import annotations

import argparse
import sys
from multiprocessing import get_context

from support.chaos.control.scripts import SCRIPTS
from support.chaos.control.values import FAULTS, Point
from support.chaos.control.world import play


def run(at: Point, seed: int) -> tuple[Point, str]:
    """Return why a run fails; empty = it does not."""
    try:
        play(at, seed=seed)
    except Exception as error:  # noqa: BLE001 - any error is a failure, told with its point
        return at, f"{type(error).__name__}: {error}"
    return at, ""


def main() -> int:
    """Run as the command line says; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m support.chaos.control")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=1, help="each so many points")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    points = [
        (Point(script, fault, number), given.seed + number)
        for script in SCRIPTS
        for fault in FAULTS
        for number in range(1, 1 + play(None, script, given.seed).points, given.every)
    ]
    with get_context("fork").Pool(given.processes) as pool:
        found = pool.starmap(run, points, chunksize=4)
    failed = [(at, why) for at, why in found if why]
    for at, why in failed:
        sys.stdout.write(f"{at.fault} at point {at.number} of {at.script}: {why}\n")
    sys.stdout.write(f"{len(points)} runs, {len(failed)} failed, from seed {given.seed}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
