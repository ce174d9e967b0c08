"""Closed-loop load: a fixed number of workers, each with one request in flight."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MAX_ERROR_CHARS: Final = 200


@dataclass(slots=True)
class Tally:
    """Results of the requests of one load."""

    by_replica: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    first_error: str = ""

    @property
    def answered(self) -> int:
        """Number of successful requests."""
        return self.by_replica.total()

    @property
    def asked(self) -> int:
        """Number of finished requests, successful or failed."""
        return self.answered + self.failed

    def fail(self, error: BaseException) -> None:
        """Count a failure and keep the message of the first one."""
        self.failed += 1
        if not self.first_error:
            self.first_error = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]

    def problems(self) -> list[str]:
        """Return one sentence if any request failed, else an empty list."""
        if not self.failed:
            return []
        return [f"{self.failed} of {self.asked} requests failed (first: {self.first_error})"]


async def closed_loop(
    ask: Callable[[int], Awaitable[str]],
    *,
    workers: int,
    total: int | None = None,
    stop: asyncio.Event | None = None,
    tally: Tally | None = None,
) -> Tally:
    """Send requests until ``total`` are sent or ``stop`` is set, whichever comes first.

    ``ask`` receives the number of the request and returns the name of the replica that answered.
    An ``Exception`` of ``ask`` counts as a failed request; cancellation propagates.

    Raises:
        ValueError: Neither ``total`` nor ``stop`` is given.
    """
    if total is None and stop is None:
        raise ValueError("a load needs an end: give total, stop or both")
    tally = Tally() if tally is None else tally
    made = 0

    async def work() -> None:
        nonlocal made
        while (total is None or made < total) and not (stop is not None and stop.is_set()):
            number = made
            made += 1
            try:
                tally.by_replica[await ask(number)] += 1
            except Exception as error:  # noqa: BLE001 - every failed request is one failed request
                tally.fail(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(work())
    return tally
