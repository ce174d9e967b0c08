"""The cost guard: exact counts, and failures over budget."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from ext_proc.server.service import PickerServer

PATH = Path(__file__).resolve().parents[4] / "bench" / "cost" / "guard.py"
BUDGETS = PATH.with_name("guard.json")


@pytest.fixture(scope="module")
def guard():
    spec = importlib.util.spec_from_file_location("guard", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["guard"] = module
    path = list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = path
    return module


def test_counts_repeat(guard):
    """The same work always has the same count."""
    guard.exchanging()  # what is read once in a process is not counted again
    assert guard.exchanging() == guard.exchanging()


def test_a_fifth_more_work_is_seen(guard, monkeypatch):
    """20 % more bytecodes exceed the budget of an exchange; the same number does not."""
    before = guard.exchanging()["exchange none"]
    process = PickerServer.process

    # Ours by its globals: what the guard counts.
    code = "def spin(times):\n    for _ in range(times):\n        pass\n"
    scope = {"__name__": "ext_proc.spin"}
    exec(code, scope)  # noqa: S102 - a function that seems to be the picker's

    async def dearer(self, request, context):
        scope["spin"](before // 10)  # two bytecodes or more a turn
        await process(self, request, context)

    monkeypatch.setattr(PickerServer, "process", dearer)
    found = guard.exchanging()["exchange none"]
    assert found >= before * 1.2
    verdicts = guard.judge({"then": before, "now": found}, {"then": before, "now": before})
    assert [verdict.kept for verdict in verdicts] == [True, False]
    assert str(verdicts[1]).endswith("TOO MUCH")


def test_a_ratio_over_budget_is_detected(guard):
    """A ratio may exceed its budget by at most 30 %."""
    budget = {"parse ratio": 1.0}
    assert guard.judge({"parse ratio": 1.29}, budget)[0].kept
    assert not guard.judge({"parse ratio": 1.31}, budget)[0].kept


def test_another_python_is_not_judged(guard):
    """Counts of a Python version without budgets are printed, not compared."""
    (verdict,) = guard.judge({"exchange none": 10**6}, {})
    assert verdict.kept
    assert "no budget" in str(verdict)


def test_breaking_a_budget_fails_the_run(guard, monkeypatch, tmp_path, capsys):
    """The command returns 1 and names the figure."""
    monkeypatch.setattr(guard, "BUDGETS", tmp_path / "guard.json")
    monkeypatch.setattr(sys, "argv", ["guard.py", "--write"])
    monkeypatch.setattr(guard, "measure", lambda: {"exchange none": 100})
    assert guard.main() == 0
    monkeypatch.setattr(sys, "argv", ["guard.py"])
    monkeypatch.setattr(guard, "measure", lambda: {"exchange none": 111})
    assert guard.main() == 1
    assert "exchange none" in capsys.readouterr().out


def test_a_budget_without_a_figure_fails_the_run(guard, monkeypatch, tmp_path, capsys):
    """A renamed measurement does not go unguarded."""
    monkeypatch.setattr(guard, "BUDGETS", tmp_path / "guard.json")
    monkeypatch.setattr(sys, "argv", ["guard.py", "--write"])
    monkeypatch.setattr(guard, "measure", lambda: {"exchange none": 100, "read chat": 50})
    assert guard.main() == 0
    monkeypatch.setattr(sys, "argv", ["guard.py"])
    monkeypatch.setattr(guard, "measure", lambda: {"exchange none": 100})
    assert guard.main() == 1
    assert "read chat" in capsys.readouterr().out
