"""The loop of ``top``."""

from __future__ import annotations

import pytest

from tidegate.cli.top.loop import follow
from tidegate.cli.top.model import Glance, Sort
from tidegate.terminal.errors import CliError

FOUND = Glance("OK", "", 1, True, 2, 0, [], [])


class Script:
    """A terminal whose keys are written down: (seconds until it is pressed, key)."""

    def __init__(self, *keys: tuple[float, str]) -> None:
        self.keys = list(keys)
        self.now = 0.0
        self.screens: list[list[str]] = []

    def size(self) -> tuple[int, int]:
        """Return columns and lines."""
        return 80, 24

    def draw(self, lines) -> None:
        """Remember a screen."""
        self.screens.append(list(lines))

    def key(self, wait_s: float) -> str:
        """Return the next key if it comes in time."""
        after, key = self.keys[0]
        if after > wait_s:
            self.keys[0] = (after - wait_s, key)
            self.now += wait_s
            return ""
        self.now += after
        self.keys.pop(0)
        return key

    def clock(self) -> float:
        """Return the time."""
        return self.now


def run(script: Script, look=lambda: FOUND) -> list[list[str]]:
    """Follow until the script quits."""
    follow(look, script, Sort.NAME, 2.0, script.clock)
    return script.screens


def test_it_looks_anew_at_its_interval_until_q() -> None:
    """A key does not ask the control server."""
    looks = []

    def look() -> Glance:
        looks.append(script.now)
        return FOUND

    script = Script((0.5, "x"), (4.0, "q"))
    run(script, look)
    assert looks == [0.0, 2.0, 4.0]


def test_s_changes_the_order_and_r_reverses_it() -> None:
    """The order is named on the screen."""
    orders = [
        screen[1].rpartition("by ")[2]
        for screen in run(Script((0.1, "s"), (0.1, "r"), *[(0.1, "s")] * 5, (0.1, "q")))
    ]
    assert orders[:3] == ["name", "requests", "requests (reversed)"]
    assert orders[-1] == "name (reversed)"


def test_the_first_failure_ends_it() -> None:
    """A wrong address must be seen."""

    def look() -> Glance:
        raise CliError("cannot reach it")

    with pytest.raises(CliError):
        run(Script((0.0, "q")), look)


def test_a_later_failure_is_shown_with_its_age() -> None:
    """A control server may restart; then the reason goes."""
    answers = iter([FOUND, CliError("cannot reach it"), FOUND])

    def look() -> Glance:
        answer = next(answers)
        if isinstance(answer, CliError):
            raise answer
        return answer

    screens = run(Script((5.0, "q")), look)
    assert screens[1][1] == "cannot reach it; shown is what was 2 s ago"
    assert screens[2] == screens[0]
