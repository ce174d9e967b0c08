"""No false alarm: ordinary traffic and ordinary operations, and `status` stays OK without a cause.

Real Tritons and Envoy. Requests of several kinds and lengths at random, drains, canary weights,
restarts of replicas, of picker and of control server. `status` is asked each second; each
reason that it gives must have a cause in the script: an event that may bring it about.

It runs only where ``TIDEGATE_CALM_SECONDS`` says for how long (1800 is half an hour);
``TIDEGATE_CALM_SEED`` draws other events, and ``-rP`` shows the figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import time
from collections import Counter
from typing import Final

import aiohttp
import grpc
import pytest

from support.traffic import (
    GENERATE,
    admin,
    counter_body,
    eventually,
    fresh_prompt,
    vision_body,
)
from tidegate.stack.local import PICKER
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.names import MODEL_HEADER

SECONDS = float(os.environ.get("TIDEGATE_CALM_SECONDS", "0"))
SEED = int(os.environ.get("TIDEGATE_CALM_SEED", "1"))
EVENT_EVERY_S: Final = 20.0
AFTER_S: Final = 75.0
"""A cause may show for so long after its end: rates are those of the last minute."""
CAUSES: Final = {
    "picker": r"picker|not known|got no pick|were refused .*local",
    "control": r"picker|has not acknowledged",
    "kill": r"replica r\d of pool \w+ is (not ready|silent|ejected|half open|frozen)"
    r"|no usable replica|failed in the last minute",
}
"""What each kind of event may bring about: an expression of the reasons."""
POLITE: Final = ("drain", "weights", "restart", "burst")
"""Events that may bring about nothing."""

pytestmark = [
    pytest.mark.skipif(not SECONDS, reason="TIDEGATE_CALM_SECONDS is not set"),
    pytest.mark.timeout(SECONDS + 600),
]


class Clients:
    """Requests of all kinds, a few per second, some long; counts what became of them."""

    def __init__(self, http: aiohttp.ClientSession, url: str, rng: random.Random) -> None:
        self.http = http
        self.url = url
        self.rng = rng
        self.pace_s = 0.4
        """Mean pause of each client between two requests."""
        self.ended: Counter[str] = Counter()

    async def run(self) -> None:
        """Send until cancelled."""
        kinds = (self.chat, self.chat, self.long, self.vision, self.sequence, self.index)
        async with asyncio.TaskGroup() as group:
            for kind in kinds:
                group.create_task(self._repeat(kind))

    async def _repeat(self, kind) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(1.0 / self.pace_s))
            try:
                status = await kind()
            except (aiohttp.ClientError, TimeoutError) as error:
                status = type(error).__name__
            self.ended[f"{kind.__name__} {status}"] += 1

    async def _post(self, path: str, body: dict, **headers: str) -> int:
        async with self.http.post(self.url + path, json=body, headers=headers) as answer:
            await answer.read()
            return answer.status

    async def chat(self) -> int:
        """Ask for a short answer to a prompt of any length."""
        prompt = fresh_prompt(int(self.rng.lognormvariate(6.0, 1.0)))
        tokens = self.rng.choice((4, 16, 64))
        return await self._post(GENERATE, {"text_input": prompt, "max_tokens": tokens})

    async def long(self) -> int:
        """Ask for a long answer, as a stream."""
        body = {"text_input": fresh_prompt(400), "max_tokens": self.rng.choice((256, 1024, 2048))}
        return await self._post("/v2/models/toy-llm/generate_stream", body)

    async def vision(self) -> int:
        """Ask another pool."""
        return await self._post("/v2/models/vision/infer", vision_body())

    async def sequence(self) -> int:
        """Send a sequence of three requests."""
        number, status = self.rng.randrange(1, 2**31), 0
        for step in range(3):
            flags = {"sequence_start": step == 0, "sequence_end": step == 2}
            status = await self._post(
                "/v2/models/counter/infer", counter_body(step, number, **flags)
            )
        return status

    async def index(self) -> int:
        """Ask for a model that is not there: a caller's mistake."""
        return await self._post("/v2/models/toy-llm/versions/7/infer", {}, **{MODEL_HEADER: "none"})


class Script:
    """What is done to the system, and when; see the module."""

    def __init__(self, stack, tritons, clients: Clients, rng: random.Random) -> None:
        self.stack = stack
        self.tritons = tritons
        self.clients = clients
        self.rng = rng
        self.done: list[tuple[str, float, float]] = []
        """Kind, begin and end of each event, monotonic seconds."""
        self.now = ""
        self.began = time.monotonic()

    async def run(self) -> None:
        """Let events happen until cancelled."""
        kinds = (*POLITE, "drain", "weights", "picker", "control", "kill")
        while True:
            await asyncio.sleep(self.rng.uniform(0.5, 1.5) * EVENT_EVERY_S)
            kind = self.rng.choice(kinds)
            self.now, self.began = kind, time.monotonic()
            await getattr(self, kind)()
            self.done.append((kind, self.began, time.monotonic()))
            self.now = ""

    def explains(self, reason: str, at: float) -> bool:
        """Return whether an event may have brought about a reason that is given at a time."""
        events = [*self.done, *([(self.now, self.began, at)] if self.now else [])]
        return any(
            kind in CAUSES and begin <= at <= end + AFTER_S and re.search(CAUSES[kind], reason)
            for kind, begin, end in events
        )

    async def _draining(self, name: str, *, draining: bool) -> None:
        async with admin(self.stack) as stub:
            await stub.SetDraining(api.SetDrainingRequest(endpoint=name, draining=draining))

    async def drain(self) -> None:
        """Drain a replica for a while."""
        name = self.rng.choice(("r1", "r2"))
        await self._draining(name, draining=True)
        await asyncio.sleep(self.rng.uniform(2.0, 10.0))
        await self._draining(name, draining=False)

    async def restart(self) -> None:
        """Drain a replica, restart it once it is safe to, and let it in again."""
        name = self.rng.choice(("r1", "r2"))
        await self._draining(name, draining=True)

        async def safe() -> bool:
            async with admin(self.stack) as stub:
                return (await stub.GetDrain(api.GetDrainRequest(endpoint=name))).safe

        assert await eventually(safe)
        await self.tritons.restart(name)
        await self._draining(name, draining=False)

    async def weights(self) -> None:
        """Give the canary another share."""
        share = self.rng.choice((0, 5, 20, 50))
        async with admin(self.stack) as stub:
            weights = {"stable": 100 - share, "canary": share}
            await stub.SetWeights(api.SetWeightsRequest(pool="llm", weights=weights))

    async def burst(self) -> None:
        """Send more for a while."""
        self.clients.pace_s = 0.1
        await asyncio.sleep(self.rng.uniform(5.0, 20.0))
        self.clients.pace_s = 0.4

    async def picker(self) -> None:
        """Restart the picker."""
        await self.stack.kill_picker()
        await self.stack.start_picker()

    async def control(self) -> None:
        """Restart the control server."""
        await self.stack.kill_control_server()
        await self.stack.start_control_server()

    async def kill(self) -> None:
        """Kill a replica, and start it again."""
        await self.tritons.restart(self.rng.choice(("r1", "r2")))


async def test_status_stays_ok_without_a_cause(http, new_stack, tritons) -> None:
    """Whatever ordinary operators and clients do."""
    stack, rng = await new_stack(), random.Random(SEED)
    clients = Clients(http, stack.http_url, random.Random(SEED + 1))
    script = Script(stack, tritons, clients, rng)
    told: Counter[str] = Counter()
    alarms: Counter[str] = Counter()
    looks: Counter[str] = Counter()
    running = [asyncio.create_task(each.run()) for each in (clients, script)]
    until = time.monotonic() + SECONDS
    try:
        while time.monotonic() < until:
            await asyncio.sleep(1.0)
            for each in running:
                assert not each.done(), each.exception()
            try:
                async with admin(stack) as stub:
                    found = await stub.GetStatus(api.GetStatusRequest(), timeout=2.0)
            except grpc.aio.AioRpcError:
                assert script.explains("picker", time.monotonic()), "no control server"
                looks["no answer"] += 1
                continue
            looks[found.verdict] += 1
            for reason in found.reasons:
                kept = told if script.explains(reason, time.monotonic()) else alarms
                kept[re.sub(r"\d+(\.\d+)?", "N", reason)] += 1
    finally:
        for each in running:
            each.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*running, return_exceptions=True)
    events = Counter(kind for kind, _, _ in script.done)
    print(f"seed {SEED}, {SECONDS:.0f} s, {PICKER}: looks {dict(looks)}, events {dict(events)}")  # noqa: T201 - pytest -rP shows it
    print(f"requests {dict(sorted(clients.ended.items()))}")  # noqa: T201 - as above
    print(f"told with a cause {dict(told)}\nwithout one {dict(alarms)}")  # noqa: T201 - as above
    assert not alarms
