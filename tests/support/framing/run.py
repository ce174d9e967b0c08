"""Runs drawn cases through a stack, many at a time, and makes what fails as simple as it can."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence

from support.framing.cases import Case, draw, simpler
from support.framing.fronts import Http1Front, Http2Front
from support.framing.law import Book

WORKERS = 24
"""Draws under way at a time."""
SHARED = 3
"""Connections over HTTP/2 that they share."""
BEATS = 1_000_000_000
"""Numbers of the cases by which the run waits begin here."""


class Heart:
    """Small requests, sent one after the other as long as a test waits for them.

    What waits for two of them waits for as long as a request through the picker takes, whatever
    the machine is doing. They are cases as all others.
    """

    def __init__(self, address: str, book: Book) -> None:
        self._front = Http2Front(address, book)
        self._waiting: list[tuple[asyncio.Future[None], list[int]]] = []
        self._number = BEATS
        self._task: asyncio.Task[None] | None = None

    def __call__(self) -> asyncio.Future[None]:
        """Return a future that is done after two whole requests."""
        made: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((made, [2]))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._beat())
        return made

    async def _beat(self) -> None:
        while self._waiting:
            present = list(self._waiting)
            self._number += 1
            await self._front.run([Case(self._number, "h2", "peek")])
            for future, left in present:
                left[0] -= 1
                if not left[0] and not future.done():
                    future.set_result(None)
            self._waiting = [each for each in self._waiting if each[1][0]]

    def stop(self) -> None:
        """Close the connection."""
        if self._task is not None:
            self._task.cancel()
        self._front.close()


class Run:
    """Cases of one seed on a stack.

    Args:
        address: Of Envoy, ``ip:port``.
        http3: Of what sends on over HTTP/3 what it gets, ``ip:port``.
        book: Of the stack's replicas.
        seed: Of the cases.
        fronts: Protocols of clients.
    """

    def __init__(
        self, address: str, http3: str, book: Book, seed: int, fronts: tuple[str, ...]
    ) -> None:
        self._address, self.book, self._seed, self._fronts = address, book, seed, fronts
        self._shared = [Http2Front(address, book) for _ in range(SHARED)]
        self._http3 = Http2Front(http3, book)
        self.hang_s = 90.0
        """A draw that takes longer hangs, seconds."""
        self._heart = Heart(address, book)
        book.beat = self._heart

    async def go(self, cases: int, *, until: str = "") -> None:
        """Run draws until so many cases have begun, or a violation says ``until``."""
        began, numbers = time.monotonic(), self._numbers(cases, until)
        async with asyncio.TaskGroup() as group:
            for worker in range(WORKERS):
                group.create_task(self._work(worker, numbers))
        await self.settle()
        self.book.count["ms"] += round(1e3 * (time.monotonic() - began))

    async def settle(self) -> None:
        """Wait until nothing can be under way any more, and judge all cases."""
        try:
            async with asyncio.timeout(self.hang_s):
                for _ in range(2):
                    await self._heart()
        except TimeoutError:
            self.book.violated("no request is answered any more")
        self.book.settle()

    def stop(self) -> None:
        """Close all connections."""
        self._heart.stop()
        for front in (*self._shared, self._http3):
            front.close()

    def _numbers(self, cases: int, until: str) -> Iterator[Sequence[Case]]:
        begun = number = 0
        while begun < cases and not any(until in each for each in self.book.violations):
            drawn = draw(self._seed, number, fronts=self._fronts)
            number += 1
            begun += len(drawn)
            yield drawn

    async def _work(self, worker: int, numbers: Iterator[Sequence[Case]]) -> None:
        own = Http1Front(self._address, self.book)
        for drawn in numbers:
            await self._one(drawn, own, self._shared[worker % SHARED])
        own.close()

    async def _one(self, cases: Sequence[Case], http1: Http1Front, shared: Http2Front) -> None:
        front: Http1Front | Http2Front = http1
        if cases[0].front == "h2":
            # Envoy ends a connection for some errors, and with it the streams of others.
            front = Http2Front(self._address, self.book) if cases[0].malformed else shared
        elif cases[0].front == "h3":
            front = self._http3
        try:
            async with asyncio.timeout(self.hang_s):
                await front.run(cases)
        except TimeoutError:
            self.book.violated("a hang", cases[0])
            front.close()
        if front not in {http1, shared, self._http3}:
            front.close()

    # --- failures -------------------------------------------------------------------------------

    async def explain(self) -> str:
        """Return the violations, with the simplest case that has one."""
        book = self.book
        lines = [f"seed {self._seed}: {len(book.violations)} violations", *book.violations[:5]]
        for number in list(dict.fromkeys(book.guilty))[:3]:
            drawn = draw(self._seed, number // 8, fronts=self._fronts) if number < BEATS else []
            if drawn and (found := await self._simplest(drawn)):
                cases, what = found
                lines += ["simplest:", *map(repr, cases), *what[:3]]
                break
        return "\n".join(lines)

    async def _simplest(self, cases: Sequence[Case]) -> tuple[Sequence[Case], list[str]] | None:
        found = await self.fails(cases)
        if not found:
            return None
        tries = 0
        while tries < 60:
            for fewer in self._fewer(cases):
                tries += 1
                if what := await self.fails(fewer):
                    cases, found = fewer, what
                    break
            else:
                break
        return cases, found

    @staticmethod
    def _fewer(cases: Sequence[Case]) -> Iterator[Sequence[Case]]:
        if len(cases) > 1:
            for at in range(len(cases)):
                yield [*cases[:at], *cases[at + 1 :]]
        for at, case in enumerate(cases):
            for less in simpler(case):
                yield [*cases[:at], less, *cases[at + 1 :]]

    async def fails(self, cases: Sequence[Case]) -> list[str]:
        """Return the violations of cases that run alone, thrice at most."""
        for _ in range(3):
            self.book.violations.clear()
            own, shared = (kind(self._address, self.book) for kind in (Http1Front, Http2Front))
            with contextlib.suppress(OSError):
                await self._one(cases, own, shared)
            await self.settle()
            own.close()
            shared.close()
            if self.book.violations:
                return list(self.book.violations)
        return []
