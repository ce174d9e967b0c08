"""Serves the picker's pages, and writes that of metrics in slices.

Rule: the writer yields to other tasks between two slices. A fleet of a thousand replicas has about
9,000 samples; written at once they block the loop for tens of milliseconds at each scrape. So a
page is not a snapshot: its beginning may be older than its end.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ext_proc.settings import AddressError
from tidegate_common.tls.pages import serve_pages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from aiohttp import web
    from prometheus_client import CollectorRegistry

    from tidegate_common.tls.rpc import OnRefused
    from tidegate_common.tls.settings import Secured


SLICE: Final = 100
"""Samples per iteration of the loop: about 0.3 ms."""

_FLAT: Final = frozenset({"counter", "gauge"})
"""Types whose samples are independent lines, which can be split anywhere."""
_HEAD_LINES: Final = 2
"""``# HELP`` and ``# TYPE``."""


class _One(Collector):
    """A registry of one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


async def page_of(registry: CollectorRegistry) -> bytes:
    """Return the registry in Prometheus' text format, as ``generate_latest`` does."""
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
    """Yield a family in pieces, each with whether its head is to be written."""
    samples = family.samples
    if len(samples) <= SLICE or family.type not in _FLAT:
        yield family, True
        return
    for at in range(0, len(samples), SLICE):
        piece = Metric(family.name, family.documentation, family.type, family.unit)
        piece.samples = samples[at : at + SLICE]
        yield piece, at == 0


@contextlib.asynccontextmanager
async def serve_page(
    app: web.Application,
    address: str,
    secured: Secured | None = None,
    on_refused: OnRefused = lambda *_: None,
    health_port: int | None = None,
) -> AsyncIterator[str]:
    """Serve an HTTP application and yield its bound address.

    Args:
        app: The pages.
        address: ``ip:port``.
        secured: Identity and roles; ``None`` = no TLS.
        on_refused: Called with address, names and reason of each refusal.
        health_port: Port for ``/healthz`` alone, without TLS.

    Raises:
        AddressError: The address is in use or not local.
    """
    async with contextlib.AsyncExitStack() as stack:
        served = serve_pages(app, address, secured, on_refused, health_port)
        try:
            bound = await stack.enter_async_context(served)
        except OSError as error:
            raise AddressError(
                f"cannot listen on {address}: {error.strerror or error};"
                " choose another with --metrics"
                + (" or --health-port" if health_port is not None else "")
            ) from error
        yield bound
