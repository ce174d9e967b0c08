"""A page of metrics, written in slices.

Law: between two slices whatever else is due has its turn. A fleet of a thousand replicas has some
9,000 samples; written at once they hold the loop for tens of milliseconds, each time Prometheus
asks. So a page is no snapshot: what it says first may be older than what it says last.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry

SLICE: Final = 100
"""Samples in one turn of the loop: some 0.3 ms."""

_FLAT: Final = frozenset({"counter", "gauge"})
"""Types whose samples stand one below the other: they can be cut anywhere."""
_HEAD_LINES: Final = 2
"""``# HELP`` and ``# TYPE``."""


class _One(Collector):
    """A registry of one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


async def page_of(registry: CollectorRegistry) -> bytes:
    """Return what ``generate_latest`` returns, in the text format of Prometheus."""
    parts: list[bytes] = []
    due = SLICE
    for family in registry.collect():
        for piece, head in _pieces(family):
            text = generate_latest(_One(piece))
            parts.append(text if head else text.split(b"\n", _HEAD_LINES)[_HEAD_LINES])
            due -= len(piece.samples)
            if due <= 0:
                due = SLICE
                await asyncio.sleep(0)
    return b"".join(parts)


def _pieces(family: Metric) -> Iterator[tuple[Metric, bool]]:
    """Yield a family in pieces, and whether its head is to be written."""
    samples = family.samples
    if len(samples) <= SLICE or family.type not in _FLAT:
        yield family, True
        return
    for at in range(0, len(samples), SLICE):
        piece = Metric(family.name, family.documentation, family.type, family.unit)
        piece.samples = samples[at : at + SLICE]
        yield piece, at == 0
