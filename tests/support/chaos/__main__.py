"""Runs simulated schedules of faults: ``make chaos MINUTES=5``.

``python -m support.chaos --schedules 100000 --seed 1`` runs so many; each that breaks what must be
true is printed with its seed and the fewest faults that break it. The exit code is 1 then. With
``--unlisted`` members are those of ``--group-members``, without the control server's list.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from multiprocessing import get_context
from typing import TYPE_CHECKING, Final

from support.chaos.group import play, schedule, smallest

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK: Final = 100
SHOWN: Final = 5
"""Failures after which no more are looked for."""
BEAT_S: Final = 10.0


def run(first: int, listed: bool) -> tuple[Counter[str], list[int]]:
    """Run a chunk of schedules; return what was counted, and the seeds that failed."""
    gc.disable()  # most of what is made goes by itself
    counts: Counter[str] = Counter()
    failed, began = [], time.process_time()
    for seed in range(first, first + CHUNK):
        counts["schedules"] += 1
        try:
            group = play(seed, listed=listed)
        except Exception:  # noqa: BLE001 - any error is a failure, told with its seed
            failed.append(seed)
            continue
        counts["faults"] += len(group.faults)
        counts["runs of members"] += next(group.lives) - 1
        counts["decisions"] += group.decided
        counts["refusals"] += group.refused
        counts["bytes"] += group.network.sent
        counts["virtual seconds"] += int(group.network.now)
        counts["sequences on two replicas, of halves"] += sum(
            len(where) > 1 for where in group.sent.values()
        )
    gc.collect()
    counts["CPU ms"] += int(1000 * (time.process_time() - began))
    return counts, failed


def main() -> int:
    """Run as the command line says; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m support.chaos")
    parser.add_argument("--schedules", type=int, default=10**9, help="how many at most")
    parser.add_argument("--minutes", type=float, default=10**6, help="for how long at most")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first; the next is +1")
    parser.add_argument("--unlisted", action="store_true", help="without a list of members")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    end = time.monotonic() + given.minutes * 60.0

    def firsts() -> Iterator[int]:
        for first in range(given.seed, given.seed + given.schedules, CHUNK):
            if time.monotonic() >= end or len(failed) >= SHOWN:
                return
            yield first

    total: Counter[str] = Counter()
    failed: list[int] = []
    said = time.monotonic()
    with get_context("fork").Pool(given.processes) as pool:
        window = []
        for first in firsts():
            window.append(pool.apply_async(run, (first, not given.unlisted)))
            if len(window) > 2 * given.processes:
                counts, more = window.pop(0).get()
                total += counts
                failed += more
            if time.monotonic() - said > BEAT_S:
                said = time.monotonic()
                _say(f"{total['schedules']} schedules, {len(failed)} failed")
        for each in window:
            counts, more = each.get()
            total += counts
            failed += more
    for seed in failed[:SHOWN]:
        faults, why = smallest(seed, listed=not given.unlisted)
        _say(f"seed {seed}, {schedule(seed)[0]} members: {why}")
        for fault in faults:
            _say(f"    {fault}")
    _say(", ".join(f"{count} {what}" for what, count in total.items()))
    _say(f"{len(failed)} failed, from seed {given.seed}")
    return 1 if failed else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
