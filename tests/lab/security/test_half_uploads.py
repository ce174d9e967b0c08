"""Uploads that stop half way, through a real Envoy: they fill nothing that others need.

``TIDEGATE_COST_UPLOADS=4000`` makes as many with all defaults; ``-rP`` shows the figures.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from typing import Self

import grpc
import pytest

from support.edge_stack import GRPC, INFER, EdgeStack, answer, ask
from support.in_process_stack import PICKER
from support.sockets import Raw, head
from support.traffic import eventually

pytestmark = pytest.mark.timeout(300)

UPLOADS = int(os.environ.get("TIDEGATE_COST_UPLOADS", "0"))
PROBES = 8
OF_CLIENT = 16
"""What one client may have under way in the short forms; the pools' breakers have as much again."""
LONG = 200_000


class Stack(EdgeStack):
    """Two pools with small bounds, or with all defaults."""

    def __init__(self, *, defaults: bool = False) -> None:
        super().__init__(routing={} if defaults else {"uploads_per_client": OF_CLIENT})
        self._defaults = defaults

    def first_fleet(self):
        """Return the fleet, in which Envoy waits for pickers as long as by default, or longer."""
        fleet = super().first_fleet()
        if self._defaults:
            del fleet["pickers"]["timeout"]
            return fleet
        for pool in fleet["pools"]:
            pool["circuit_breaker"] = {"max_requests": 2 * OF_CLIENT, "min_retries": 1}
        return fleet


@pytest.fixture(scope="module")
async def stack(demo_extra):  # noqa: ARG001 - skips first
    """Run the stack with small bounds."""
    async with Stack() as running:
        yield running


class Other(Raw):
    """A connection of another client."""

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(
            *self._peer, local_addr=("127.0.0.2", 0)
        )
        return self


async def probe(stack) -> int:
    """Send a whole request from another address; return its status."""
    async with Other(stack.listener) as raw:
        await raw.send(head(INFER, "content-length: 2"), b"{}")
        return (await answer(raw))[0]


async def probes(stack) -> list[int]:
    return list(await asyncio.gather(*(probe(stack) for _ in range(PROBES))))


class Held(list[Raw]):
    """Uploads of which a half was sent."""

    async def add(self, stack, count: int, length: int = 1000) -> None:
        """Connect, then send all at once."""
        new = [Raw(stack.listener) for _ in range(count)]
        for at in range(0, count, 100):
            await asyncio.gather(*(raw.__aenter__() for raw in new[at : at + 100]))
        half = head(INFER, f"content-length: {length}") + b"{" + b" " * (length // 2)
        for raw in new:
            raw.writer.write(half)
        self.extend(new)

    async def statuses(self, answered: int) -> Counter[int]:
        """Wait until so many are answered; return their statuses, those of open ones left out."""
        waiting = [asyncio.create_task(raw.status()) for raw in self]
        while sum(each.done() for each in waiting) < answered:
            await asyncio.wait(
                [each for each in waiting if not each.done()], return_when=asyncio.FIRST_COMPLETED
            )
        for each in waiting:
            each.cancel()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        return Counter(each for each in ended if isinstance(each, int))

    def close(self) -> None:
        """Leave all of them."""
        for raw in self:
            raw.writer.close()


@pytest.fixture
def held():
    """Hold uploads for the test, and leave them afterwards."""
    made = Held()
    yield made
    made.close()


async def no_uploads(stack) -> bool:
    """Return whether Envoy has no request open but the question itself."""
    page = await stack.envoy_page("stats?format=json&filter=ingress.downstream_rq_active")
    return sum(each["value"] for each in page["stats"]) == 0


async def reached(stack, count: int) -> bool:
    """Return whether so many requests or more have reached a replica."""
    return len(stack.seen) >= count


async def accepted(stack) -> bool:
    """Return whether the picker counts no upload of this client any more."""
    return (await ask(stack, INFER, body=b"{}"))[0] == 200


@pytest.mark.parametrize("length", [1000, LONG])
async def test_a_client_has_so_many_uploads_under_way(stack, held, length):
    """The others are refused, whether the first part is awaited or was forwarded."""
    stack.forget()
    await held.add(stack, 3 * OF_CLIENT, length)
    assert await held.statuses(2 * OF_CLIENT) == {429: 2 * OF_CLIENT}
    assert await probes(stack) == [200] * PROBES
    if length == LONG:
        assert await eventually(lambda: reached(stack, OF_CLIENT + PROBES))
    assert len(stack.seen) == PROBES + (OF_CLIENT if length == LONG else 0)
    held.close()
    assert await eventually(lambda: no_uploads(stack))
    assert await eventually(lambda: accepted(stack)), "its uploads have ended"


@pytest.fixture
async def impatient(stack):
    """Let Envoy wait for the picker for a short time only."""
    fleet = stack.first_fleet()
    fleet["pickers"]["timeout"] = "400ms"
    await stack.apply(fleet)
    yield stack
    await stack.apply(stack.first_fleet())


async def test_a_late_picker_lets_no_half_upload_through(impatient, held):
    """Envoy holds short ones until they are complete, and refuses long ones; whole ones pass."""
    stack = impatient
    stack.forget()
    picker = stack.supervisor.pid(PICKER)
    os.kill(picker, signal.SIGSTOP)
    try:
        long_one = asyncio.create_task(ask(stack, INFER, body=b"{" + b" " * LONG + b"}"))
        await held.add(stack, 3 * OF_CLIENT)
        status, headers, _ = await long_one
        assert (status, headers["x-tidegate-reason"]) == (503, "late-upload")
        assert headers["retry-after"] == "1"
        assert await probes(stack) == [200] * PROBES
        assert len(stack.seen) == PROBES
        await held[0].send(b" " * 499)
        assert await held[0].status() == 200, "it goes on once it is complete"
        async with grpc.aio.insecure_channel(stack.listener) as channel:
            await channel.unary_unary(GRPC + "ModelInfer")(b"\n\x07toy-llm", timeout=60)
    finally:
        os.kill(picker, signal.SIGCONT)


async def test_each_address_has_its_own_rate(stack):
    """Beside the rate of all requests, which is filled in other steps."""
    fleet = stack.first_fleet()
    fleet["listener"]["client_rate_limit"] = {"requests": 2, "per": "1h"}
    fleet["listener"]["rate_limit"] = {"requests": 7, "per": "90s"}
    await stack.apply(fleet)
    try:
        own = [(await ask(stack, INFER, body=b"{}"))[0] for _ in range(4)]
        assert own == [200, 200, 429, 429]
        assert [await probe(stack) for _ in range(4)] == [200, 200, 429, 429]
    finally:
        await stack.apply(stack.first_fleet())


@pytest.mark.skipif(not UPLOADS, reason="TIDEGATE_COST_UPLOADS says how many")
@pytest.mark.parametrize("length", [1000, LONG])
async def test_a_flood_of_half_uploads_fills_nothing(demo_extra, length):  # noqa: ARG001
    """With all defaults: every probe of another client is served, during the flood and after it."""
    held = Held()
    async with Stack(defaults=True) as running:
        await held.add(running, UPLOADS if length == 1000 else UPLOADS // 4, length)
        first = await probes(running)
        answered = sum(bool(raw.reader._buffer) for raw in held)
        print(  # noqa: T201 - shown with -rP
            f"{len(held)} half uploads of {length} bytes: {answered} answered,"
            f" {len(running.seen) - PROBES} reached a replica, probes {Counter(first)}"
        )
        assert first == [200] * PROBES
        assert await probes(running) == [200] * PROBES
        held.close()
