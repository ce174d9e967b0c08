"""Runs the tests by layer and says how much CPU time each layer took.

``make test`` runs this::

    python -m tools.layers                              # every layer, several at once
    python -m tools.layers --in-turn                    # one after another
    python -m tools.layers --coverage                   # as CI does: branches of both services too
    python -m tools.layers --only lab,process           # these layers
    python -m tools.layers tests/unit/ext_proc -k lease # these tests only, as pytest takes them
    python -m tools.layers --hold                       # fail if the last run took too much
    python -m tools.layers --renew                      # take the last run as the new record

Rules:

1. A layer is a set of folders that one run of pytest collects (``LAYERS``). All layers run, also
   after one that failed; the exit code is 1 if any failed. After ^C no further one begins. The
   ``LANES`` run at once, as tests of the lab and of processes also wait. What pytest prints then
   comes whole when its layer ends (``build/layers/NAME.log`` until then), with lines of progress on
   the way.
2. The measure is CPU time, user and system, of pytest, its workers and all processes that they
   waited for. What contention of caches and cores does to it is taken out by the time of a fixed
   computation during the run (``MachineSpeed``). What a busy machine adds is not: a test that waits
   longer looks more often, and what runs for it idles longer.
3. ``results/cpu.json`` has the records, by Python version and the pace of their machines.
   ``--hold`` fails where a layer of the last whole run took more than ``MARGIN`` times its record.
   A layer without a record of about the same pace (``MOST_PACE``) never fails: caches and memory do
   not differ by the same factor. A run beside which other programs took more than ``MOST_OTHERS``
   of the processors' time is neither compared nor recorded.
4. The last lines say which tests failed, in every layer, with the first line of why, and why a
   layer without a failed test failed: of a long log often only its end is kept.
5. A small selection runs in one process, without pytest-xdist: starting workers takes longer.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[1]
LAYERS: Final[dict[str, tuple[str, ...]]] = {
    "unit": ("tests/unit",),
    "contract": ("tests/contract", "tests/epp", "tests/fuzz"),
    "lab": ("tests/lab", "tests/e2e", "tests/conformance"),
    "process": ("tests/process",),
}
"""Folders of each layer; one that does not exist is left out."""
COVERED: Final = ("unit", "contract")
"""Layers whose branch coverage is measured; services of the others are processes of their own."""
LANES: Final = (("lab", "process"), ("contract",), ("unit",))
"""Layers that run one after another while those of the other lanes run too."""
NICENESS: Final = {"contract": 1, "unit": 3}
"""How much lower the priority is: unit tests never wait, and take what tests that do leave. What
waits for whole stacks comes first: these idle meanwhile, which costs CPU time too. Low enough that
other programs of a busy machine, which have priority too, leave a fifth of it to unit tests."""
OPT_IN: Final = ("tests/engines", "tests/kubernetes", "tests/monitoring", "tests/soak")
"""Suites that `make test` does not run: each needs what it installs first, or takes minutes."""
RECORD: Final = ROOT / "results" / "cpu.json"
LAST: Final = ROOT / "build" / "cpu.json"
"""What the last whole run took: not committed."""
REPORTS: Final = ROOT / "build" / "layers"
"""What pytest wrote and printed of each layer's tests (JUnit's XML, and a log): not committed."""
MARGIN: Final = 1.10
MOST_OTHERS: Final = 0.1
"""Part of all processors' time that other programs may take in a run that is compared."""
MOST_PACE: Final = 1.15
"""How many times slower or faster than a record's machine one is whose run is compared, at most."""
WHY: Final[Mapping[int, str]] = {
    1: "no test failed; what pytest or a plugin printed last, such as coverage, says what did",
    2: "interrupted, or a file of tests cannot be collected",
    3: "an internal error of pytest or of a plugin",
    4: "pytest was called wrongly, or a conftest.py cannot be imported",
    5: "no test was collected",
}
"""What pytest's exit codes say where its report names no failed test."""
WHY_CHARACTERS: Final = 200
GROUPED: Final = re.compile(r"^ *\| (\w*(?:Error|Exception|Warning)\b.+)", re.MULTILINE)
"""An exception inside a group, whose first line says only how many there are."""
WHY_PARTS: Final = 8
WORKERS: Final = ("-n", "2", "--dist", "loadfile")
WAITING: Final[dict[str, tuple[str, ...]]] = {
    "contract": ("-n", "3", "--dist", "loadfile"),
    **dict.fromkeys(
        ("lab", "process"), ("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder")
    ),
}
"""Workers of layers whose tests also wait, mostly for other processes: two cores run more of them.

Files of lab and process come in the order of `tests/support/scheduling.py`: by number of tests,
which is the default, those that take longest come last, and run alone.
"""
ALONE: Final = ("-p", "no:xdist", "-p", "no:pytest_cov")
FEW_FILES: Final = 12
"""At most so many files of tests without processes run faster without workers."""
POLL_S: Final = 0.1
"""Between two looks at whether a run of pytest has ended."""
PROGRESS_S: Final = 20.0
"""Between two lines that say how far the layers are."""
PROGRESS: Final = re.compile(r"^([.sxXFE]+) +\[ *(\d+)%\]$", re.MULTILINE)
"""A line of pytest's: a letter for each test, and how many have run."""
COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")
STANDARD_S: Final = 0.010
"""CPU seconds of `MachineSpeed`'s computation on the machine that the record's seconds are of."""


class MachineSpeed:
    """Measures, in a thread, how fast this machine computes while tests run.

    A fixed piece of pure Python is timed by the thread's CPU clock; it takes about ``STANDARD_S``.
    The samples are bounded by the length of a run.
    """

    EVERY_S = 2.0

    def __init__(self) -> None:
        self._samples: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._measure, name="speed", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def count(self) -> int:
        """Return the number of samples so far."""
        return len(self._samples)

    def factor(self, since: int = 0) -> float:
        """Return how many times slower than the standard the machine was, by the median.

        Args:
            since: The number of samples when what it is wanted for began.
        """
        samples = self._samples[since:] or self._samples[-1:]
        return statistics.median(samples) / STANDARD_S if samples else 1.0

    def _measure(self) -> None:
        while True:
            began = time.thread_time()
            _computation()
            self._samples.append(time.thread_time() - began)
            if self._over.wait(self.EVERY_S):
                return


def _computation() -> int:
    """Compute the same in every run: a mixture of objects, dictionaries and texts."""
    found: dict[str, list[int]] = {}
    for number in range(64_000):
        found.setdefault(str(number % 997), []).append(number)
    return sum(len(each) for each in found.values())


class Run(NamedTuple):
    """How a run of pytest ended, and what it took."""

    code: int
    wall_s: float
    cpu_s: float
    """User and system time of pytest and of all processes that it waited for."""
    factor: float

    @property
    def standard_s(self) -> float:
        """CPU seconds as on the machine of the record."""
        return self.cpu_s / self.factor


class Pytest:
    """A run of pytest that has begun.

    Args:
        arguments: What pytest gets.
        speed: Measures the machine meanwhile.
        log: Where it prints; ``None`` = where this process does.
        niceness: By how much its priority is lower than that of this process.
        env: What it has beside this process's environment.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        speed: MachineSpeed,
        log: Path | None = None,
        niceness: int = 0,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._speed = speed
        self._since = speed.count
        self._began = time.monotonic()
        with ExitStack() as closed:
            output = closed.enter_context(log.open("wb")) if log else None
            self._process = subprocess.Popen(  # noqa: S603 - this Python
                (sys.executable, "-m", "pytest", *arguments),
                cwd=ROOT,
                env={**os.environ, **env},
                stdout=output,
                stderr=subprocess.STDOUT if log else None,
            )
        if niceness:
            own = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, self._process.pid, own + niceness)

    def ended(self) -> Run | None:
        """Return how it ended, if it has. May be asked until then."""
        pid, status, used = os.wait4(self._process.pid, os.WNOHANG)
        if not pid:
            return None
        self._process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - self._began
        cpu = used.ru_utime + used.ru_stime
        return Run(self._process.returncode, wall, cpu, self._speed.factor(self._since))


class Interrupts:
    """Notes ^C, which pytest gets too, and reports. A context manager for the main thread."""

    def __init__(self) -> None:
        self.came = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, *_: object) -> None:
        self.came = True


def run_pytest(arguments: Sequence[str]) -> Run:
    """Run pytest with the terminal's output."""
    with MachineSpeed() as speed, Interrupts():
        running = Pytest(arguments, speed)
        while (run := running.ended()) is None:
            time.sleep(POLL_S)
    return run


def workers(arguments: Sequence[str], root: Path = ROOT) -> tuple[str, ...]:
    """Return the options with which a selection runs: two workers, or none where it is small.

    Args:
        arguments: What pytest gets.
        root: The folder that paths are relative to.
    """
    if any(each.startswith(("-n", "--dist", "--cov", "-p")) for each in arguments):
        return ()
    named = [each.split("::")[0] for each in arguments if not each.startswith("-")]
    paths = [root / each for each in named if (root / each).exists()]
    if not paths:
        return WORKERS
    if any("::" in each for each in arguments):
        return ALONE
    heavy = not all(_is_light(path.relative_to(root)) for path in paths)
    if not heavy and "-k" in arguments:
        return ALONE
    files = [
        file for path in paths for file in (path.rglob("test_*.py") if path.is_dir() else [path])
    ]
    return ALONE if len(files) <= (1 if heavy else FEW_FILES) else WORKERS


def _is_light(path: Path) -> bool:
    return any(path.is_relative_to(folder) for name in COVERED for folder in LAYERS[name])


def _folders(name: str) -> list[str]:
    return [folder for folder in LAYERS[name] if (ROOT / folder).is_dir()]


def run_layers(names: Sequence[str] = tuple(LAYERS), *, coverage: bool, beside: bool = True) -> int:
    """Run layers, print what each took and what failed, and return the exit code.

    Args:
        names: The layers.
        coverage: Whether the branches of both services are measured.
        beside: Whether the ``LANES`` run at once.
    """
    if wrong := [each for each in names if each not in LAYERS]:
        _say(f"no such layer: {', '.join(wrong)}; there are {', '.join(LAYERS)}")
        return 2
    began, busy = time.monotonic(), busy_s()
    lanes = Lanes(
        [[each for each in lane if each in names] for lane in (LANES if beside else (LAYERS,))],
        coverage=coverage,
    )
    runs = lanes.run()
    wall = time.monotonic() - began
    pace = statistics.median(run.factor for run in runs.values()) if runs else 1.0
    if runs.keys() == {name for name in LAYERS if _folders(name)}:
        LAST.parent.mkdir(exist_ok=True)
        took = {_label(name, coverage): round(run.standard_s, 1) for name, run in runs.items()}
        own = time.process_time() + sum(run.cpu_s for run in runs.values())
        others = max(0.0, busy_s() - busy - own) / (wall * (os.cpu_count() or 1))
        last = Last(_python(), took, round(others, 3), round(pace, 3))._asdict()
        LAST.write_text(json.dumps(last, indent=2) + "\n")
    _say(table({_label(name, coverage): run for name, run in runs.items()}, _record(pace), wall))
    failed = [name for name, run in runs.items() if run.code]
    for name in failed:
        _say(f"{name} failed with exit code {runs[name].code}:")
        for line in why(runs[name].code, REPORTS / f"{name}.xml"):
            _say(f"  {line}")
    if missing := [name for name in names if name not in runs and _folders(name)]:
        _say(f"interrupted; not run: {', '.join(missing)}")
    return 1 if failed or missing else 0


def busy_s(stat: Path = Path("/proc/stat")) -> float:
    """Return the seconds that all processors together have worked or were taken, by proc(5)."""
    _, user, nice, system, _, _, *more = stat.read_text().partition("\n")[0].split()
    ticks = sum(map(int, (user, nice, system, *more[:3])))  # interrupts, and other guests
    return ticks / os.sysconf("SC_CLK_TCK")


def _label(name: str, coverage: bool) -> str:
    return f"{name} with coverage" if coverage and name in COVERED else name


class Lanes:
    """Runs each lane's layers one after another and all lanes at once.

    Args:
        lanes: Names of layers.
        coverage: Whether the branches of both services are measured.
    """

    def __init__(self, lanes: Iterable[Iterable[str]], *, coverage: bool) -> None:
        waiting = [[name for name in lane if _folders(name)] for lane in lanes]
        self._waiting = [lane for lane in waiting if lane]
        self._coverage = coverage
        self._beside = len(self._waiting) > 1
        self._running: dict[str, Pytest] = {}
        self._runs: dict[str, Run] = {}

    def run(self) -> dict[str, Run]:
        """Run all and print what pytest does; return the runs, which are fewer after ^C."""
        REPORTS.mkdir(parents=True, exist_ok=True)
        shown = time.monotonic()
        with MachineSpeed() as speed, Interrupts() as interrupts:
            while True:
                if not interrupts.came:
                    self._begin(speed)
                if not self._running:
                    break
                time.sleep(POLL_S)
                self._end()
                if self._beside and self._running and time.monotonic() - shown > PROGRESS_S:
                    shown = time.monotonic()
                    _say(", ".join(f"{name} {progress(_printed(name))}" for name in self._running))
        return {name: self._runs[name] for name in LAYERS if name in self._runs}

    def _begin(self, speed: MachineSpeed) -> None:
        """Begin the first layer that waits in each lane of which none runs."""
        for lane in self._waiting:
            if lane and lane[0] not in self._running:
                self._running[lane[0]] = self._begun(lane[0], speed)

    def _begun(self, name: str, speed: MachineSpeed) -> Pytest:
        folders = _folders(name)
        measured = ("--cov", "--cov-report=") if self._coverage and name in COVERED else ()
        report = REPORTS / f"{name}.xml"
        report.unlink(missing_ok=True)
        colour = ("--color=yes",) if self._beside and sys.stdout.isatty() else ()
        _say(f"--- {self._title(name)} {'begins' if self._beside else ''}".rstrip())
        return Pytest(
            (*WAITING.get(name, WORKERS), *measured, *colour, f"--junitxml={report}", *folders),
            speed,
            _log(name) if self._beside else None,
            NICENESS.get(name, 0) if self._beside else 0,
            {"COVERAGE_FILE": str(REPORTS / f"{name}.coverage")} if measured else {},
        )

    def _end(self) -> None:
        """Take the layers that have ended out of their lanes."""
        for name, each in tuple(self._running.items()):
            if (run := each.ended()) is not None:
                self._runs[name] = run
                del self._running[name]
                next(lane for lane in self._waiting if lane[:1] == [name]).pop(0)
                if self._beside:
                    _say(f"--- {self._title(name)}\n{_printed(name)}")

    def _title(self, name: str) -> str:
        return f"{_label(name, self._coverage)}: {' '.join(_folders(name))}"


def _log(name: str) -> Path:
    return REPORTS / f"{name}.log"


def _printed(name: str) -> str:
    return _log(name).read_text("utf-8", "replace").rstrip()


def progress(printed: str) -> str:
    """Return how far a layer is, by what pytest has printed."""
    lines = PROGRESS.findall(COLOUR.sub("", printed))
    failed = sum(letters.count("F") + letters.count("E") for letters, _ in lines)
    return f"{lines[-1][1] if lines else 0} %" + (f" ({failed} failed)" if failed else "")


def why(code: int, report: Path) -> list[str]:
    """Return why a layer failed: a line for each test that did, or one for the exit code.

    Args:
        code: Pytest's exit code, negative for a signal.
        report: Pytest's report of the layer; it is not there if pytest died.
    """
    try:
        suites = ET.parse(report).getroot()  # noqa: S314 - pytest has just written it
    except FileNotFoundError:
        return [f"pytest ended before it wrote a report: {_meaning(code)}"]
    except ET.ParseError as error:
        return [f"pytest's report is damaged ({error}): {_meaning(code)}"]
    tests = list(_failed_tests(suites))
    return tests if tests and code == 1 else [*tests, _meaning(code)]


def _meaning(code: int) -> str:
    if code < 0:
        return f"signal {-code} ended pytest"
    return WHY.get(code, "pytest does not say what this exit code means")


def _failed_tests(suites: ET.Element) -> Iterator[str]:
    for case in suites.iter("testcase"):
        place = case.get("classname", "").replace(".", "/") + ".py"
        for found in case:
            if found.tag in {"failure", "error"}:
                message = found.get("message") or found.text or ""
                first = message.strip().partition("\n")[0][:WHY_CHARACTERS]
                yield f"{place}::{case.get('name')}: {first}"
                for part in GROUPED.findall(found.text or "")[:WHY_PARTS]:
                    yield f"  {part[:WHY_CHARACTERS]}"


def table(runs: Mapping[str, Run], record: Mapping[str, float], wall: float) -> str:
    """Return what each layer took beside its record, as lines of text.

    Args:
        runs: The run of each layer.
        record: Standard CPU seconds of layers.
        wall: Seconds of all together, which is less than their sum where they ran at once.
    """
    rows = [f"{'layer':<24}{'wall s':>8}{'CPU s':>8}{'standard':>10}{'record':>8}"]
    for name, run in runs.items():
        known = f"{record[name]:.0f}" if name in record else "-"
        rows.append(
            f"{name:<24}{run.wall_s:>8.0f}{run.cpu_s:>8.0f}{run.standard_s:>10.0f}{known:>8}"
        )
    cpu = sum(run.cpu_s for run in runs.values())
    standard = sum(run.standard_s for run in runs.values())
    rows.append(f"{'all':<24}{wall:>8.0f}{cpu:>8.0f}{standard:>10.0f}")
    return "\n".join(rows)


def too_much(took: Mapping[str, float], record: Mapping[str, float]) -> list[str]:
    """Return a sentence for each layer that took more than ``MARGIN`` times its record."""
    return [
        f"{name} took {took[name]:.0f} CPU seconds, {took[name] / known - 1:.0%} more than its "
        f"record of {known:.0f}"
        for name, known in record.items()
        if name in took and took[name] > known * MARGIN
    ]


class Last(NamedTuple):
    """The last whole run, as ``LAST`` has it."""

    python: str
    layers: dict[str, float]
    """Standard CPU seconds by layer."""
    others: float
    """What other programs took of all processors' time, 0 to 1."""
    pace: float = 1.0
    """How many times slower than the standard the machine was."""

    @property
    def disturbed(self) -> str:
        """Why it is neither compared nor recorded; empty if it is."""
        if self.others > MOST_OTHERS:
            return f"other programs took {self.others:.0%} of the processors' time in the last run"
        return ""


def _last() -> Last | None:
    """Return the last whole run of this Python, if there is one."""
    last = Last(**json.loads(LAST.read_text())) if LAST.exists() else None
    return last if last is not None and last.python == _python() else None


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _records() -> dict[str, list[dict[str, Any]]]:
    """Return by Python version the records, each with ``pace`` and CPU seconds of ``layers``."""
    found: dict[str, list[dict[str, Any]]] = (
        json.loads(RECORD.read_text()) if RECORD.exists() else {}
    )
    return found


def _alike(pace: float, other: float) -> bool:
    return 1 / MOST_PACE <= pace / other <= MOST_PACE


def _record(pace: float) -> dict[str, float]:
    """Return what this Python's record of about this pace allows each layer.

    Runs on one machine took equal CPU seconds, within 3 %, while its pace was measured up to 15 %
    apart: what was measured as faster may take as many standard seconds more.
    """
    alike = [each for each in _records().get(_python(), ()) if _alike(each["pace"], pace)]
    if not alike:
        return {}
    near = min(alike, key=lambda each: abs(each["pace"] - pace))
    error = max(1.0, near["pace"] / pace)
    return {name: round(seconds * error, 1) for name, seconds in near["layers"].items()}


def hold() -> int:
    """Compare the last whole run with the record; return 1 if it took too much."""
    last = _last()
    if last is None:
        _say("no whole run yet: run `make test` first")
        return 1
    if last.disturbed:
        _say(f"nothing is compared: {last.disturbed}")
        return 0
    record = _record(last.pace)
    if not record.keys() & last.layers.keys():
        _say(
            f"no record of these layers for Python {_python()} on a machine of pace "
            f"{last.pace:.2f}: nothing is compared (make cpu-record makes one)"
        )
        return 0
    if missing := sorted(last.layers.keys() - record.keys()):
        _say(f"not compared, as the record has none: {', '.join(missing)}")
    wrong = too_much(last.layers, record)
    for sentence in wrong:
        _say(sentence)
    if wrong:
        _say("find what became slower, or take this run as the record: make cpu-record")
    else:
        _say("CPU time of the tests: within the record")
    return 1 if wrong else 0


def renew() -> int:
    """Make the last whole run the record of its pace; layers that it did not run keep theirs."""
    last = _last()
    if last is None:
        _say("no whole run yet: run `make test COVERAGE=1` first, as CI does")
        return 1
    if last.disturbed:
        _say(f"nothing is recorded: {last.disturbed}; make one on a quiet machine")
        return 1
    records = _records()
    known = _record(last.pace)
    others = [each for each in records.get(_python(), ()) if not _alike(each["pace"], last.pace)]
    records[_python()] = [*others, {"pace": last.pace, "layers": {**known, **last.layers}}]
    RECORD.write_text(json.dumps(records, indent=2, sort_keys=True) + "\n")
    _say(f"recorded {', '.join(last.layers)}")
    return 0


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a tool


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments ask for; return the exit code."""
    if "--help" in arguments:
        _say(__doc__ or "")
        return 0
    coverage, beside = "--coverage" in arguments, "--in-turn" not in arguments
    match [each for each in arguments if each not in {"--coverage", "--in-turn"}]:
        case ["--hold"]:
            return hold()
        case ["--renew"]:
            return renew()
        case []:
            return run_layers(coverage=coverage, beside=beside)
        case ["--only", names]:
            return run_layers(names.split(","), coverage=coverage, beside=beside)
    options = workers(arguments)
    run = run_pytest((*options, *arguments))
    _say(f"{shlex.join(arguments)}: {run.wall_s:.1f} s, {run.cpu_s:.1f} CPU seconds")
    return run.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
