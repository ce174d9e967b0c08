"""``--watch`` repeats a verb that reads."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tidegate.cli import watching
from tidegate.terminal.errors import UNREACHABLE, CliError

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.command_line import FakeAdmin, Run


class Rounds:
    """A pause that ends the command after some rounds."""

    def __init__(self, most: int) -> None:
        self.waited: list[float] = []
        self._most = most

    def __call__(self, seconds: float) -> None:
        self.waited.append(seconds)
        if len(self.waited) == self._most:
            raise KeyboardInterrupt


def failing(*turns: int) -> Callable[[], None]:
    """Return a verb that prints its round and fails in some."""
    done = []

    def verb() -> None:
        done.append(None)
        sys.stdout.write(f"round {len(done)}\n")
        if len(done) in turns:
            raise CliError("cannot reach it", UNREACHABLE)

    return verb


def test_answers_follow_one_another(capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe nothing is overwritten."""
    pause = Rounds(3)
    with pytest.raises(KeyboardInterrupt):
        watching.repeat(failing(), pause)
    assert capsys.readouterr().out == "round 1\n\nround 2\n\nround 3\n"
    assert pause.waited == [watching.INTERVAL_S] * 3


def test_a_server_may_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    """A failure after the first round is printed."""
    with pytest.raises(KeyboardInterrupt):
        watching.repeat(failing(2), Rounds(3))
    captured = capsys.readouterr()
    assert "round 3" in captured.out
    assert captured.err == "tidegate: cannot reach it\n"


def test_a_wrong_address_is_seen_at_once() -> None:
    """The first failure ends the command."""
    with pytest.raises(CliError, match="cannot reach"):
        watching.repeat(failing(1), Rounds(3))


def test_a_verb_that_reads_can_be_watched(
    run: Run, admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends it with exit code 130."""
    monkeypatch.setattr(watching.repeat, "__defaults__", (Rounds(2),))
    ran = run("get", "pools", "--watch", "--server", admin.address)
    assert ran.code == 130
    assert ran.out.count("canary") == 2
