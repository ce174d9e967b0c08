"""The bench behind ``tidegate bench``: suites, their limits, their results and the report.

Rules:

1. Suites run one after the other, each within its limit; one that fails or is too slow is reported
   as such and the others go on.
2. What is in the output folder from an earlier call stays, suite by suite: a suite that runs again
   replaces its own results only. So a long measurement can be made in parts.
3. The report is a function of ``results.json``.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from bench.peers.contenders import NAMES
from bench.peers.environment import ROOT, Environment, prepare
from bench.report.write import around, fill, write_report
from bench.suites.context import Context, machine
from bench.suites.workloads import KINDS
from tidegate import logs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

LIMITS: Final = {
    # suite: seconds of the short and of the long form
    "throughput": (120, 1_800),
    "overhead": (180, 1_200),
    "picker": (60, 300),
    "fleet": (480, 4 * 3_600),
    "real": (120, 600),
    "control": (90, 900),
    "scale": (120, 600),
}
"""Every suite, in the order in which they run, with its limits."""
WITH_PEERS: Final = ("throughput", "fleet")


class UsageError(ValueError):
    """Options that do not hold; the text says why."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked for.

    Raises:
        UsageError: A name is unknown, or the page is not one to write into.
    """

    suites: Sequence[str] = ()
    """None = all."""
    full: bool = False
    out: Path | None = None
    """``None`` = ``build/bench`` in the checkout."""
    seeds: int | None = None
    contenders: Sequence[str] = ()
    workloads: Sequence[str] = ()
    seconds: float | None = None
    scale: float | None = None
    report_only: bool = False
    docs: Path | None = None
    """A page that is to hold the results between its markers."""

    def __post_init__(self) -> None:
        """Check names, and the page before hours are spent."""
        if self.docs is not None:
            try:
                around(self.docs)
            except (OSError, ValueError) as error:
                raise UsageError(str(error)) from None
        for given, known, what in (
            (self.suites, LIMITS, "suite"),
            (self.contenders, NAMES, "contender"),
            (self.workloads, KINDS, "workload"),
        ):
            for name in given:
                if name not in known:
                    raise UsageError(f"no {what} {name!r}; there are {', '.join(known)}")


def run(options: Options, console: Console) -> int:
    """Run the bench; returns 0, or 1 where a suite failed."""
    logs.configure("console", "error")
    return asyncio.run(_bench(options, console))


async def _bench(options: Options, console: Console) -> int:
    names = options.suites or list(LIMITS)
    out = options.out or ROOT / "build" / "bench"
    path = out / "results.json"
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"suites": {}}
    if path.exists():
        results = orjson.loads(path.read_bytes())
    failed = 0
    if not options.report_only:
        environment = Environment(Path())
        if set(names) & set(WITH_PEERS):
            console.print("peers: installing what is missing into .bench/peers")
            environment = await prepare()
        for number, name in enumerate(names, 1):
            begin = time.monotonic()

            def say(
                text: str, place: str = f"[{number}/{len(names)}]", begin: float = begin
            ) -> None:
                console.print(f"{place} {time.monotonic() - begin:5.0f} s  {text}", markup=False)

            context = Context(
                full=options.full,
                environment=environment,
                say=say,
                seeds=options.seeds or (3 if options.full else 1),
                contenders=options.contenders,
                workloads=options.workloads,
                scale=options.scale,
                seconds=options.seconds,
            )
            results["suites"][name] = await _suite(name, context)
            failed += "failed" in results["suites"][name]
            results["machine"] = machine()
            path.write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2))
    written = write_report(results, out)
    if options.docs is not None:
        written += fill(results, options.docs)
    for each in written:
        console.print(f"written: {each}", markup=False)
    return 1 if failed else 0


async def _suite(name: str, context: Context) -> dict[str, Any]:
    """Run one suite within its limit."""
    begin = time.monotonic()
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "form": context.pick("quick", "full"),
        "seeds": context.seeds,
        "command": _command(name, context),
        "peers": context.environment.versions,
    }
    try:
        module = importlib.import_module(f"bench.suites.{name}")
        async with asyncio.timeout(context.pick(*LIMITS[name])):
            found: dict[str, Any] = await module.run(context)
    except TimeoutError:
        limit = context.pick(*LIMITS[name])
        found = {"failed": f"not done after {limit} s"}
    except Exception as error:  # noqa: BLE001 - one suite's failure is a finding, not the end
        found = {"failed": f"{type(error).__name__}: {error}"}
    if "failed" in found:
        context.say(f"{name} FAILED: {found['failed']}")
    return {**about, "took_s": round(time.monotonic() - begin, 1), **found}


def _command(name: str, context: Context) -> str:
    words = ["tidegate bench", name, f"--{context.pick('quick', 'full')}"]
    words.append(f"--seeds {context.seeds}")
    names = {"contenders": context.contenders, "workloads": context.workloads}
    words += [f"--{option} {','.join(chosen)}" for option, chosen in names.items() if chosen]
    given = {"seconds": context.seconds, "scale": context.scale}
    words += [f"--{option} {value:g}" for option, value in given.items() if value is not None]
    return " ".join(words)
