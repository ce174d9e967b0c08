"""A trickle of requests while the demo stays up, for its pages and verbs to have news.

Rules:

1. One request is in flight at a time; after each there is a pause of ``PAUSE_S``.
2. A request that fails is counted, never raised: replicas may be killed or drained meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tidegate.demo.clients import Clients
    from tidegate.demo.load import Tally

PAUSE_S: Final = 0.4
"""Seconds between two requests."""
TOPICS: Final = 8
"""Prompts that are repeated, so that some of them are cached."""
VISION_EVERY: Final = 4
TOKENS: Final = 8


def asking(clients: Clients) -> Callable[[int], Awaitable[str]]:
    """Return what sends the request of a number: a prompt, each fourth an image."""

    async def ask(number: int) -> str:
        if number % VISION_EVERY == 0:
            return await clients.infer_http()
        prompt = f"Topic {number % TOPICS}: which gate is open, and for whom? " * 4
        return (await clients.generate(prompt, TOKENS)).replica

    return ask


async def trickle(
    ask: Callable[[int], Awaitable[str]],
    stop: asyncio.Event,
    tally: Tally,
    pause_s: float = PAUSE_S,
) -> None:
    """Send requests until ``stop`` is set; see the module's rules.

    Args:
        ask: Sends the request of a number and returns the replica that answered.
        stop: Ends it after the request in flight.
        tally: Counts them.
        pause_s: Seconds between two requests.
    """
    number = 0
    while not stop.is_set():
        number += 1
        try:
            tally.by_replica[await ask(number)] += 1
        except Exception as error:  # noqa: BLE001 - see rule 2
            tally.fail(error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), pause_s)


def told(tally: Tally) -> str:
    """Return what became of the requests, in one line."""
    failed = f", {tally.failed} failed (first: {tally.first_error})" if tally.failed else ""
    return f"a trickle of requests: {tally.answered} answered{failed}"
