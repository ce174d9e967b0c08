"""Layers of the tests: what is run, with which workers, and what it may take."""

from __future__ import annotations

import itertools
import json
import signal
import traceback
import xml.etree.ElementTree as ET
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from tools import layers
from tools.layers import ALONE, LAYERS, OPT_IN, ROOT, WORKERS, Run, table, too_much, workers


def test_every_folder_of_tests_is_run_by_a_layer_or_on_request():
    """A new folder is entered, or no command would run it."""
    holding = {
        "/".join(path.relative_to(ROOT).parts[:2]) for path in (ROOT / "tests").rglob("test_*.py")
    }
    listed = [folder for folders in LAYERS.values() for folder in folders]
    assert holding <= {*listed, *OPT_IN}
    assert len(listed) == len(set(listed))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree with a folder of one unit test, one of many, and two end-to-end tests."""
    for name, count in (("tests/unit/few", 1), ("tests/unit/many", 30), ("tests/e2e", 2)):
        (tmp_path / name).mkdir(parents=True)
        for number in range(count):
            (tmp_path / name / f"test_{number}.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("tests/unit/few",), ALONE),
        (("tests/unit/many",), WORKERS),
        (("tests/unit/many", "-k", "lease"), ALONE),
        (("tests/unit/many/test_1.py::test_it",), ALONE),
        (("tests/e2e/test_1.py",), ALONE),
        (("tests/e2e",), WORKERS),
        (("tests/e2e", "-k", "drain"), WORKERS),
        (("-k", "drain"), WORKERS),
        (("-n", "4", "tests/e2e"), ()),
        (("tests/unit/few", "--cov"), ()),
    ],
)
def test_a_small_selection_runs_in_one_process(tree, arguments, expected):
    """Workers cost more than they save there; who asks for them gets them."""
    assert workers(arguments, tree) == expected


def test_a_layer_may_take_a_tenth_more_than_its_record():
    """What is not recorded, and what did not run, is not compared."""
    record = {"unit": 100.0, "lab": 50.0, "process": 10.0}
    assert too_much({"unit": 109.0, "lab": 54.0, "contract": 900.0}, record) == []
    assert too_much({"unit": 111.0, "lab": 54.0}, record) == [
        "unit took 111 CPU seconds, 11% more than its record of 100"
    ]


def test_the_pace_of_the_machine_is_taken_out():
    """A machine of half the speed takes twice the seconds for the same work."""
    run = Run(0, 70.0, 200.0, 2.0)
    assert run.standard_s == 100.0
    assert table({"unit": run, "real": run}, {"unit": 99.0}, 90.0).splitlines() == [
        "layer                     wall s   CPU s  standard  record",
        "unit                          70     200       100      99",
        "real                          70     200       100       -",
        "all                           90     400       200",
    ]


class Begun:
    """A run of pytest that ends when it is asked for the second time."""

    ended_runs: ClassVar[list[str]] = []

    def __init__(self, arguments, *_) -> None:
        self._name = next(name for name in LAYERS if LAYERS[name][-1] == arguments[-1])
        self._asked = 0
        self.ended_runs.append(f"{self._name} begins")

    def ended(self) -> Run | None:
        self._asked += 1
        if self._asked < 2:
            return None
        self.ended_runs.append(f"{self._name} ends")
        if self._name == "lab" and self.interrupt:
            signal.raise_signal(signal.SIGINT)
        layers._log(self._name).write_text("...F [ 99%]\n")
        return Run(1 if self._name == "lab" else 0, 1.0, 2.0, 1.0)

    interrupt = False


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """Return what layers do, none of which runs anything."""
    monkeypatch.setattr(layers, "REPORTS", tmp_path)
    monkeypatch.setattr(layers, "LAST", tmp_path / "last.json")
    clock = SimpleNamespace(
        sleep=lambda _: None, monotonic=itertools.count().__next__, process_time=lambda: 0.0
    )
    monkeypatch.setattr(layers, "time", clock)
    monkeypatch.setattr(layers, "MachineSpeed", nullcontext)
    monkeypatch.setattr(layers, "Pytest", Begun)
    monkeypatch.setattr(Begun, "ended_runs", [])
    return Begun.ended_runs


def test_layers_of_a_lane_run_one_after_another_and_lanes_at_once(begun, capsys):
    """Also after one that failed; what pytest printed comes whole."""
    assert layers.main([]) == 1
    assert begun[:3] == ["lab begins", "contract begins", "unit begins"]
    assert sorted(begun[3:6]) == ["contract ends", "lab ends", "unit ends"]
    assert begun[6:] == ["process begins", "process ends"]
    printed = capsys.readouterr().out
    assert printed.count("...F [ 99%]") == 4
    assert "lab failed with exit code 1" in printed
    assert json.loads(layers.LAST.read_text())["layers"]["process"] == 2.0


def test_nothing_begins_after_an_interrupt(begun, monkeypatch, capsys):
    """What runs has got it too, and is waited for."""
    monkeypatch.setattr(Begun, "interrupt", True)
    assert layers.main([]) == 1
    assert sorted(each.split()[0] for each in begun) == sorted(["contract", "lab", "unit"] * 2)
    assert "interrupted; not run: process" in capsys.readouterr().out
    assert not layers.LAST.exists()


def test_a_single_lane_prints_to_the_terminal(begun, capsys):
    """Its layers have nothing beside them."""
    assert layers.main(["--only", "process,lab"]) == 1
    assert begun == ["lab begins", "lab ends", "process begins", "process ends"]
    begun.clear()
    assert layers.main(["--in-turn"]) == 1
    assert [each.split()[0] for each in begun[::2]] == list(LAYERS)
    assert "...F" not in capsys.readouterr().out


def test_progress_is_read_from_what_pytest_prints():
    """Of the last whole line, in colours too; failures are counted."""
    assert layers.progress("") == "0 %"
    assert layers.progress("created: 4/4 workers\n..F [  4%]\n.E\x1b[32m. [ 12%]\x1b[0m\n..") == (
        "12 % (2 failed)"
    )


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Keep the record and the last run in an empty folder."""
    monkeypatch.setattr(layers, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(layers, "LAST", tmp_path / "last.json")


def write(took, **machine):
    """Write a last run."""
    last = {"python": layers._python(), "layers": took, "others": 0.0, **machine}
    layers.LAST.write_text(json.dumps(last))


@pytest.mark.usefixtures("files")
def test_without_a_record_it_is_said_that_nothing_is_compared(capsys):
    """Silence would look as if the time had been held."""
    assert layers.hold() == 1
    assert "run `make test` first" in capsys.readouterr().out
    write({"unit": 9.0})
    assert layers.hold() == 0
    assert "nothing is compared" in capsys.readouterr().out
    layers.renew()
    assert layers.hold() == 0
    assert "within the record" in capsys.readouterr().out
    write({"unit": 9.0, "lab": 9.0})
    assert layers.hold() == 0
    assert "not compared, as the record has none: lab" in capsys.readouterr().out
    write({"unit with coverage": 9.0})
    assert layers.hold() == 0
    assert "nothing is compared" in capsys.readouterr().out


@pytest.mark.usefixtures("files")
def test_a_run_beside_other_programs_is_neither_compared_nor_recorded(capsys):
    """A busy machine takes more of a processor for the same tests."""
    write({"unit": 9.0})
    assert layers.renew() == 0
    write({"unit": 19.0}, others=layers.MOST_OTHERS)
    assert layers.hold() == 1
    write({"unit": 19.0}, others=0.25)
    capsys.readouterr()
    assert layers.hold() == 0
    assert layers.renew() == 1
    assert capsys.readouterr().out.count("other programs took 25% of") == 2
    assert layers._record(1.0) == {"unit": 9.0}


@pytest.mark.usefixtures("files")
def test_each_run_is_compared_with_the_record_of_a_machine_like_its_own(capsys):
    """A slower one has a record of its own, and a new record of its pace takes that one's place."""
    write({"unit": 9.0}, pace=1.0)
    assert layers.renew() == 0
    write({"unit": 19.0}, pace=layers.MOST_PACE)
    assert layers.hold() == 1
    write({"unit": 19.0}, pace=2.0)
    capsys.readouterr()
    assert layers.hold() == 0
    assert "on a machine of pace 2.00: nothing is compared" in capsys.readouterr().out
    assert layers.renew() == 0
    write({"lab": 5.0}, pace=2.1)
    assert layers.renew() == 0
    assert layers._record(2.1) == {"unit": 19.0, "lab": 5.0}
    assert layers._record(1.0) == {"unit": 9.0}


@pytest.mark.usefixtures("files")
def test_a_pace_that_was_measured_wrong_is_no_more_work():
    """The same CPU seconds are more standard ones on what was measured as faster."""
    write({"unit": 10.0}, pace=2.2)
    assert layers.renew() == 0
    write({"unit": 11.0}, pace=2.0)
    assert layers.hold() == 0
    write({"unit": 13.0}, pace=2.0)
    assert layers.hold() == 1


def test_the_time_of_all_processors_is_read(tmp_path, monkeypatch):
    """Of the first line, with what other guests took; without what waits for a disk."""
    monkeypatch.setattr("os.sysconf", {"SC_CLK_TCK": 100}.__getitem__)
    (tmp_path / "stat").write_text("cpu  100 20 30 4000 500 6 7 8 90 10\ncpu0 1 1 1 1 1 1 1 1 1\n")
    assert layers.busy_s(tmp_path / "stat") == 1.71


@pytest.mark.usefixtures("files")
def test_nothing_is_recorded_before_a_whole_run(capsys):
    """An empty record would look like one."""
    assert layers.renew() == 1
    assert not layers.RECORD.exists()
    assert "run `make test COVERAGE=1` first" in capsys.readouterr().out


def test_the_exceptions_of_a_group_are_said_too(tmp_path):
    """The first line of a group says only how many there are."""
    leaks = ExceptionGroup("two", [ResourceWarning("unclosed <r1>"), OSError("gone")])
    suites = ET.Element("testsuites")
    case = ET.SubElement(suites, "testcase", classname="tests.lab.test_a", name="test_b")
    error = ET.SubElement(case, "error", message="failed on setup with two")
    error.text = "".join(traceback.format_exception(leaks))
    report = tmp_path / "report.xml"
    ET.ElementTree(suites).write(report)
    first, *parts = layers.why(1, report)
    assert first == "tests/lab/test_a.py::test_b: failed on setup with two"
    assert parts[-2:] == ["  ResourceWarning: unclosed <r1>", "  OSError: gone"]
