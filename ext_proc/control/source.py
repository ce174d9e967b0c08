"""Where a picker's pools come from, if not from a control server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from ext_proc.routing.values.pool import Pool

    Take = Callable[[Mapping[str, Pool]], None]


class PoolFeed(Protocol):
    """Delivers pools while it runs."""

    @property
    def ready(self) -> asyncio.Event:
        """Set once pools are known; it stays set."""

    async def run(self) -> None:
        """Deliver each new set of pools until cancelled."""

    def state(self) -> dict[str, Any]:
        """Return the current state, for debugging."""


class PoolSource(NamedTuple):
    """A source of pools, for all processes of a picker."""

    feed: Callable[[Take], PoolFeed]
    """Makes the feed of one process out of what puts a set of pools in force."""
    name: str
    """What the log says of it."""
    worker: str
    """Module that a worker process runs; it takes the arguments of ``ext_proc.workers``, then
    these."""
    arguments: tuple[str, ...] = ()
