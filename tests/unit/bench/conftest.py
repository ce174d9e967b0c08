"""A clock for load in closed loops, which end by time."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace

import pytest

from bench.load import client


@pytest.fixture
def _counted_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a millisecond pass per look at the clock, however long that really takes."""
    ticks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: next(ticks) / 1000, process_time=time.process_time)
    monkeypatch.setattr(client, "time", clock)
