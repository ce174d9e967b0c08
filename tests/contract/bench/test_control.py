"""The table of the control server's cost."""

from __future__ import annotations

import pytest

from bench import control
from bench.control import HEADS, Size, alone, sizes


def test_each_pool_of_a_size_has_an_endpoint() -> None:
    """Other combinations are no fleets."""
    assert list(sizes((10,), (1, 50), (10, 1_000))) == [
        (10, 1, 10),
        (10, 1, 1_000),
        (10, 50, 1_000),
    ]
    assert len(list(sizes())) == 21


async def test_a_row_that_takes_too_long_is_cut(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """It says so, and the others follow; its process is gone."""
    hangs = tmp_path / "python"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(control.sys, "executable", str(hangs))
    row = await alone(Size(10, 50, 1_000), 3, 0.2)
    assert row[:4] == ("10", "100", "1000", "not done in 0.2 s")
    assert len(row) == len(HEADS)


async def test_a_row_that_fails_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """One size that cannot be measured costs no other."""
    fails = tmp_path / "python"
    fails.write_text("#!/bin/sh\nexit 3\n")
    fails.chmod(0o755)
    monkeypatch.setattr(control.sys, "executable", str(fails))
    assert (await alone(Size(10, 50, 1_000), 3, 30.0))[3] == "failed: 3"
