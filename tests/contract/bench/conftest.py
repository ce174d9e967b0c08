"""A fake clock for closed loops, which end after a time."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace

import pytest

from bench.load import client


@pytest.fixture
def _counted_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advance the clock by one millisecond per reading."""
    ticks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: next(ticks) / 1000, process_time=time.process_time)
    monkeypatch.setattr(client, "time", clock)
