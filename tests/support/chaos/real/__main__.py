"""Lets faults happen to real processes: ``python -m support.chaos.real --faults 500 --seed 7``.

Prints the seed, each part of the schedule that ran and what each kind of loss cost. What breaks a
rule is printed too; then the logs of all processes stay in ``build/chaos/SEED``, and unless
``--only-faults`` is given, halves of the schedule are run for as long as one of them fails. The
exit code is 1 then; it is 2 where this machine cannot run it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import time
from collections import defaultdict
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from support.chaos.real import checker
from support.chaos.real.schedule import Fault, drawn, group, halves, only
from support.chaos.real.world import World
from support.partition import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.chaos.real.checker import Cost

SHOWN = 20


def table(found: Sequence[Cost]) -> str:
    """Return what faults cost, by kind and part."""
    rows: defaultdict[str, list[Cost]] = defaultdict(list)
    for each in found:
        where = " - ".join(dict.fromkeys(map(group, each.window.parts)))
        rows[f"{each.window.kind} {where}"].append(each)
    lines = [
        "fault,faults,lost,broken off,refused,pick median s,max s,change median s,max s,whole max s"
    ]
    for name, costs in sorted(rows.items()):
        picks, changes = [each.pick_s for each in costs], [each.change_s for each in costs]
        sums = (
            sum(values)
            for values in zip(*((e.lost, e.open, e.refused) for e in costs), strict=True)
        )
        whole = max(each.window.ended - each.window.began for each in costs)
        times = (median(picks), max(picks), median(changes), max(changes), whole)
        lines.append(
            ",".join([name, str(len(costs)), *map(str, sums), *(f"{t:.1f}" for t in times)])
        )
    return "\n".join(lines)


async def run(seed: int, faults: Sequence[Fault], minutes: float, folder: Path) -> list[str]:
    """Run a schedule; return what it broke."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)  # noqa: ASYNC240 - before anything runs
    world = World(folder)
    async with world:
        await world.play(faults, time.monotonic() + 60.0 * minutes)
        broken = await world.verdict()
        done = list(world.load.done)
    lost = [each for each in done if each.error]
    acknowledged = sum(each.revision > 0 for each in world.operator.changes)
    costs = checker.costs(world.windows, done, world.operator.changes)
    _say(table(costs))
    _say(
        f"seed {seed}: {len(world.windows)} faults, {len(done)} requests, {len(lost)} failed, "
        f"{world.sequences} sequences, "
        f"{acknowledged} of {len(world.operator.changes)} changes acknowledged; "
        f"{len(broken)} broken rules"
    )
    for each in broken[:SHOWN]:
        _say(f"    {each}")
    if broken:
        (folder / "seen.json").write_text(
            json.dumps(
                {
                    "broken": broken,
                    "faults": list(map(str, faults)),
                    "windows": world.windows,
                    "failed": lost,
                    "changes": world.operator.changes,
                    "said": world.operator.said,
                    "exits": [one for each in world.parts.values() for one in each.exits],
                },
                indent=1,
            )
        )
        _say(f"    logs in {folder}")
    else:
        shutil.rmtree(folder)
    return broken


def main() -> int:
    """Run as the command line says; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m support.chaos.real")
    parser.add_argument("--faults", type=int, default=500, help="how many are drawn")
    parser.add_argument("--minutes", type=float, default=30.0, help="for how long at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-faults", default="", help="their numbers, separated by commas")
    given = parser.parse_args()
    numbers = [int(each) for each in given.only_faults.split(",") if each]
    faults = only(drawn(given.seed, given.faults), numbers)
    where = Path("build", "chaos", str(given.seed)).resolve()
    broken = _alone(given.seed, faults, given.minutes, where)
    if broken == 1 and not numbers:  # 2 = it cannot run here
        _reduced(given.seed, faults, given.minutes, where)
    return broken


def _reduced(seed: int, faults: Sequence[Fault], minutes: float, where: Path) -> None:
    """Run halves while one fails; say the least that does."""
    again = True
    while again:
        again = False
        for half in halves(faults):
            if _alone(seed, half, minutes, where.with_name(f"{seed}-{half[0].number}-{len(half)}")):
                faults, again = half, True
                break
    _say(f"fails with --seed {seed} --only-faults {','.join(str(f.number) for f in faults)}")


def _alone(seed: int, faults: Sequence[Fault], minutes: float, where: Path) -> int:
    """Run a schedule in a process of its own, whose hosts end with it; return its exit code."""
    process = get_context("fork").Process(target=_child, args=(seed, faults, minutes, where))
    process.start()
    process.join()
    return process.exitcode or 0


def _child(seed: int, faults: Sequence[Fault], minutes: float, where: Path) -> None:
    try:
        broken = asyncio.run(run(seed, faults, minutes, where))
    except UnsupportedError as error:
        _say(f"cannot run here: {error}")
        sys.exit(2)
    sys.exit(1 if broken else 0)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
