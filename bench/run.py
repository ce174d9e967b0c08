"""Implementation of ``tidegate bench``: suites, time limits, results and the report.

Rules:

1. Suites run sequentially, each with a time limit; a suite that fails or exceeds its limit is
   reported as such and the others continue.
2. Results in the output folder are kept per suite: a suite that runs again replaces only its own
   results. A long measurement can thus be done in parts.
3. Results that a suite passes to ``save`` are written to disk immediately. If the suite is then
   interrupted, by its limit or by the user, the last saved results are kept, with the reason.
4. The report is a pure function of ``results.json``.
"""

from __future__ import annotations

import asyncio
import difflib
import importlib
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from bench.peers.contenders import NAMES
from bench.peers.environment import ROOT, Environment, prepare
from bench.report.write import around, fill, write_report
from bench.suites.context import Context, machine
from bench.suites.fleet_plan import usual_s as fleet_s
from bench.suites.workloads import KINDS
from ext_proc.packages import PackageError, load_policies
from ext_proc.routing.policies import POLICIES
from tidegate_common import logs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

LIMITS: Final = {
    # suite: limits of the short and the long form, seconds
    "throughput": (200, 1_500),
    "overhead": (180, 1_500),
    "picker": (150, 700),
    "fleet": (480, 5_400),
    "real": (120, 600),
    "abuse": (200, 1_800),
    "control": (120, 3_000),
    "scale": (200, 600),
    "draws": (90, 4_000),
    "canary": (55, 9_000),
}
"""All suites in order of execution, with their time limits. The limit of ``fleet`` grows with the
number of requested runs."""
USUAL: Final = {
    # suite: typical durations, as above; that of ``fleet`` is computed
    "throughput": (80, 1_050),
    "overhead": (150, 1_000),
    "picker": (60, 480),
    "real": (45, 300),
    "abuse": (75, 900),
    "control": (10, 900),
    "scale": (90, 240),
    "draws": (25, 1_500),
    "canary": (7, 2_400),
}
SPARE: Final = 1.5
"""Factor by which a suite may exceed its expected duration."""
WITH_PEERS: Final = ("throughput", "fleet")


class UsageError(ValueError):
    """Invalid options; the message says why."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Options of the bench.

    Raises:
        UsageError: A name is unknown, a package's policy cannot be taken, or the page lacks the
            markers.
    """

    suites: Sequence[str] = ()
    """Names of suites; empty: all."""
    full: bool = False
    out: Path | None = None
    """Output folder; ``None``: ``build/bench`` in the checkout."""
    seeds: int | None = None
    contenders: Sequence[str] = ()
    workloads: Sequence[str] = ()
    policies: Sequence[str] = ()
    """Policies of ``real``; empty: its own."""
    seconds: float | None = None
    scale: float | None = None
    fresh: bool = False
    """Whether to drop stored runs of ``fleet`` under the same conditions."""
    report_only: bool = False
    docs: Path | None = None
    """Page that receives the results between its markers."""

    def __post_init__(self) -> None:
        """Check names and the page before a long run.

        Raises:
            UsageError: As of the class.
        """
        if self.docs is not None:
            try:
                around(self.docs)
            except (OSError, ValueError) as error:
                raise UsageError(str(error)) from None
        if self.policies:
            try:
                load_policies()
            except PackageError as error:
                raise UsageError(str(error)) from None
        for given, known, what in (
            (self.suites, LIMITS, "suite"),
            (self.contenders, NAMES, "contender"),
            (self.workloads, KINDS, "workload"),
            (self.policies, POLICIES, "policy"),
        ):
            for name in given:
                if name not in known:
                    near = difflib.get_close_matches(name, known, 1)
                    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                    raise UsageError(f"no {what} {name!r}; {hint}")


def run(options: BenchOptions, console: Console) -> int:
    """Run the bench; return 0, or 1 if a suite failed."""
    logs.configure("console", "error")
    return asyncio.run(_bench(options, console))


async def _bench(options: BenchOptions, console: Console) -> int:
    names = options.suites or list(LIMITS)
    out = options.out or ROOT / "build" / "bench"
    out.mkdir(parents=True, exist_ok=True)
    path = out / "results.json"
    results: dict[str, Any] = {"suites": {}}
    if path.exists():
        results = orjson.loads(path.read_bytes())
    failed = 0
    if not options.report_only:
        environment = Environment(Path())
        if set(names) & set(WITH_PEERS):
            console.print("peers: installing what is missing into .bench/peers")
            environment = await prepare()
        contexts = [
            _context(options, environment, out, console, f"[{number}/{len(names)}]")
            for number in range(1, len(names) + 1)
        ]
        _announce(names, contexts[0], console)
        for name, context in zip(names, contexts, strict=True):
            failed += await _suite(name, context, results, path)
    written = write_report(results, out)
    if options.docs is not None:
        written += fill(results, options.docs)
    for each in written:
        console.print(f"written: {each}", markup=False)
    return 1 if failed else 0


def _context(
    options: BenchOptions, environment: Environment, out: Path, console: Console, place: str
) -> Context:
    context = Context(
        full=options.full,
        environment=environment,
        say=lambda text: console.print(
            f"{place} {time.monotonic() - context.began:5.0f} s  {text}", markup=False
        ),
        out=out,
        fresh=options.fresh,
        seeds=options.seeds or (3 if options.full else 1),
        contenders=options.contenders,
        workloads=options.workloads,
        policies=options.policies,
        scale=options.scale,
        seconds=options.seconds,
    )
    return context


def usual_s(name: str, context: Context) -> float:
    """Return the typical duration of a suite without stored runs, seconds."""
    return context.pick(*USUAL[name]) if name in USUAL else fleet_s(context)


def limit_s(name: str, context: Context) -> float:
    """Return the time limit of a suite, seconds."""
    limit = context.pick(*LIMITS[name])
    return limit if name in USUAL else max(limit, SPARE * fleet_s(context))


def _announce(names: Sequence[str], context: Context, console: Console) -> None:
    each = {name: usual_s(name, context) / 60 for name in names}
    most = sum(limit_s(name, context) for name in names) / 60
    parts = ", ".join(f"{name} {ceil(minutes)}" for name, minutes in each.items())
    console.print(
        f"about {ceil(sum(each.values()))} minutes, {ceil(most)} at most: {parts}", markup=False
    )


async def _suite(name: str, context: Context, results: dict[str, Any], path: Path) -> bool:
    """Run one suite within its limit and write its results; return whether it failed."""
    context.began = time.monotonic()
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "form": context.pick("quick", "full"),
        "seeds": context.seeds,
        "command": _command(name, context),
        "commit": machine()["commit"],
        "peers": context.environment.versions,
    }
    saved: dict[str, Any] = {}

    def save(found: dict[str, Any]) -> None:
        saved.clear()
        saved.update(found)
        took = {"took_s": round(time.monotonic() - context.began, 1)}
        results["suites"][name] = {**about, **took, **found}
        results["machine"] = machine()
        write_whole(path, orjson.dumps(results, option=orjson.OPT_INDENT_2))

    context.save = save
    limit, reason = limit_s(name, context), ""
    try:
        module = importlib.import_module(f"bench.suites.{name}")
        async with asyncio.timeout(limit):
            save(await module.run(context))
    except TimeoutError:
        reason = f"not done after {limit:.0f} s"
    except Exception as error:  # noqa: BLE001 - the failure of a suite is a result
        reason = f"{type(error).__name__}: {error}"
    if reason:
        context.say(f"{name} FAILED: {reason}")
        save({**saved, "stopped": reason} if saved else {"failed": reason})
    return bool(reason)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically: readers see the old or the new content, also after a crash."""
    part = path.with_suffix(".part")
    part.write_bytes(data)
    part.replace(path)


def _command(name: str, context: Context) -> str:
    words = ["tidegate bench", name, f"--{context.pick('quick', 'full')}"]
    words.append(f"--seeds {context.seeds}")
    names = {
        "contenders": context.contenders,
        "workloads": context.workloads,
        "policies": context.policies,
    }
    words += [f"--{option} {','.join(chosen)}" for option, chosen in names.items() if chosen]
    given = {"seconds": context.seconds, "scale": context.scale}
    words += [f"--{option} {value:g}" for option, value in given.items() if value is not None]
    return " ".join(words)
