"""Variants of a request that kills real Tritons, beside another client's requests."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import asynccontextmanager

import aiohttp

from support.traffic import VISION, eventually, metric
from tidegate.stack.tritons.fleet import Tritons

REPLICAS = 3
ATTACKER, ACCOMPLICE, INNOCENT = "127.0.0.1", "127.0.0.3", "127.0.0.2"
"""Addresses from which the requests come: each is a caller of its own."""
PAUSE_S = 0.02
"""Between two requests of one of the other client's workers, which leaves the machine time."""
HELD = {(503, "suspect-waits"), (422, "deadly-request")}


def unchecked(fleet):
    """Let the request through that kills Triton, as one that no parser knows."""
    for pool in fleet["pools"]:
        pool["health"]["interval"] = "300ms"
        pool["routing"]["unsound_requests"] = "pass"


def killing(rng: random.Random) -> bytes:
    """Return a body with a shape for which no memory can be allocated; no two are alike."""
    image = {"name": "image", "datatype": "FP32", "shape": [2**40 + rng.getrandbits(36)]}
    image["data"] = [0.5]
    return json.dumps({"id": f"{rng.getrandbits(256):064x}", "inputs": [image]}).encode()


def near(body: bytes, rng: random.Random) -> bytes:
    """Return the body with one byte changed, which does not keep it from killing."""
    made, at = bytearray(body), rng.randrange(8, 72)  # in the id
    made[at] = rng.choice(bytes(set(b"0123456789abcdef") - {made[at]}))
    return bytes(made)


def harmless(rng: random.Random) -> bytes:
    """Return an honest body of the same form; no two are alike."""
    image = {"name": "image", "datatype": "FP32", "shape": [1, 3, 32, 32]}
    image["data"] = [rng.randrange(10) for _ in range(3072)]
    return json.dumps({"id": f"{rng.getrandbits(256):064x}", "inputs": [image]}).encode()


class Client:
    """Sends infer requests from an address of its own."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url, self._session = url + VISION, session
        self.seen: Counter[tuple[int, str | None]] = Counter()

    async def infer(self, body: bytes) -> tuple[int, str | None]:
        """Send a body; return the status and the picker's reason."""
        async with self._session.post(self._url, data=body) as answer:
            await answer.read()
            told = answer.status, answer.headers.get("x-tidegate-reason")
        self.seen[told] += 1
        return told


@asynccontextmanager
async def client_at(address: str, stack):
    """Yield a client with an address."""
    connector = aiohttp.TCPConnector(local_addr=(address, 0))
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Client(stack.http_url, session)


@asynccontextmanager
async def honest(client: Client, rng: random.Random):
    """Send honest requests all the time, from two workers."""
    stop = asyncio.Event()

    async def work() -> None:
        while not stop.is_set():
            await client.infer(harmless(rng))
            await asyncio.sleep(PAUSE_S)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(work())
        try:
            yield
        finally:
            stop.set()


async def known(http, stack) -> bool:
    """Return whether each worker of the picker knows of two deaths."""
    for page in stack.picker_pages:
        async with http.get(f"http://{page}/debug/state") as answer:
            deaths = (await answer.json())["router"]["deaths"]["deaths"]
        if len({each["endpoint"] for each in deaths}) < 2:
            return False
    return True


async def test_variants_of_a_killer_kill_two_of_three_tritons(
    http,
    demo_extra,  # noqa: ARG001 - skips first
    new_stack,
):
    """With one byte changed, by anybody, or quite another one by the same caller.

    The third Triton serves another client all the time. One that is started again dies once more,
    at most, and the third still serves.
    """
    rng = random.Random(27)
    async with Tritons(REPLICAS, models=("vision",)) as tritons:
        stack = await new_stack(tritons=tritons, models=("vision",), fleet=unchecked, workers=2)
        replicas = [each.name for each in tritons.replicas]

        for each in replicas:
            tritons.supervisor.expect_end(each)

        def alive() -> list[str]:
            return [each for each in replicas if tritons.supervisor.running(each)]

        async def two_died() -> bool:
            return len(alive()) <= 1

        async with (
            client_at(ATTACKER, stack) as attacker,
            client_at(ACCOMPLICE, stack) as accomplice,
            client_at(INNOCENT, stack) as innocent,
            honest(innocent, rng),
        ):

            async def served(more: int) -> bool:
                goal = innocent.seen[200, None] + more
                return await eventually(lambda: _reached(innocent, goal))

            async def besiege() -> None:
                for _ in range(5):
                    assert await attacker.infer(near(body, rng)) in HELD
                    assert await accomplice.infer(near(body, rng)) in HELD
                    assert await attacker.infer(killing(rng)) in HELD

            assert await served(40)
            body = killing(rng)
            assert await attacker.infer(body) == (503, "reads-spent")
            assert await eventually(lambda: known(http, stack))
            await besiege()
            # A process closes its connections some time before its parent learns of its end.
            assert await eventually(two_died)
            (survivor,) = alive()
            pid = tritons.supervisor.pid(survivor)
            await asyncio.sleep(2.5)  # the deaths are complete
            await besiege()
            assert await attacker.infer(body) in HELD
            assert await served(40)
            assert alive() == [survivor]
            assert await metric(http, stack.picker_metrics, "tidegate_picker_suspects") >= 1

            again = next(each for each in replicas if each != survivor)
            await tritons.restart(again)
            tritons.supervisor.expect_end(again)
            for _ in range(10):
                await attacker.infer(near(body, rng))
                await accomplice.infer(near(body, rng))
                await attacker.infer(killing(rng))
                assert await served(10)
            assert survivor in alive()
            assert tritons.supervisor.pid(survivor) == pid
        assert innocent.seen[200, None] > 150
        lost = {each for each in innocent.seen if each != (200, None)}
        assert not lost & HELD
        assert sum(innocent.seen[each] for each in lost) <= 4  # in flight where one died
        shown = {
            "innocent": innocent.seen,
            "attacker": attacker.seen,
            "accomplice": accomplice.seen,
        }
        print(shown)  # noqa: T201 - figures for -rP


async def _reached(client: Client, goal: int) -> bool:
    return client.seen[200, None] >= goal
