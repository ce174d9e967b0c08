"""Pages of metrics in slices."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from ext_proc.observability.counts import Counts, Timings
from ext_proc.observability.pages import SLICE, page_of


def registry(series: int) -> CollectorRegistry:
    """Return one with counters, timings and gauges."""
    made = CollectorRegistry()
    counts = Counts("picks", "Of an endpoint\n and its \\ words.", ["endpoint"], made)
    for number in range(series):
        counts.add((f'r"{number}',), number)
    Timings("seconds", "How long.", "part", ["a"], [i / 100 for i in range(2 * SLICE)], made)
    Gauge("last", "A gauge.", registry=made).set(3)
    return made


async def test_a_page_in_slices_is_the_page():
    """It is equal byte for byte, with fewer, as many, and more samples than a slice has."""
    for series in (0, 1, SLICE - 1, SLICE, SLICE + 1, 3 * SLICE + 7):
        made = registry(series)
        assert await page_of(made) == generate_latest(made)


async def test_others_have_their_turn_between_slices():
    """A long page takes as many iterations of the loop as it has slices."""
    writing = asyncio.create_task(page_of(registry(5 * SLICE)))
    turns = 0
    while not writing.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 5
