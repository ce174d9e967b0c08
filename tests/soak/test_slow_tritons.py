"""Real Tritons that become ten times slower, at three requests a second, are in `status`.

One pool has a replica that becomes slower than its peer, in another one all replicas become slower
than they were. It runs only where ``TIDEGATE_SLOW_SECONDS`` says how long they are quick first; the
past of a replica needs 120 s and more. ``-rP`` shows how soon each was said.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import time

import pytest

from support.incidents import status_of
from support.placed_models import BODY

SECONDS = float(os.environ.get("TIDEGATE_SLOW_SECONDS", "0"))
SEED = int(os.environ.get("TIDEGATE_SLOW_SEED", "1"))
ONE, ALL = "paced-one", "paced-all"
AT = ("r1", "r2")
QUICK_MS, SLOW_MS = 50, 500
PER_S = 3.0
WITHIN_S = 60.0
SAID = {ONE: "replica r2 of pool paced-one is slow ", ALL: "of pool paced-all is slower "}

pytestmark = [
    pytest.mark.skipif(not SECONDS, reason="TIDEGATE_SLOW_SECONDS is not set"),
    pytest.mark.timeout(SECONDS + 300),
]


def with_paced(fleet):
    """Add a pool for each model."""
    (vision,) = [pool for pool in fleet["pools"] if pool["match"]["models"] == ["vision"]]
    for name in (ONE, ALL):
        endpoints = [dict(each) for each in vision["endpoints"] if each["id"] in AT]
        for each in endpoints:
            each.pop("variant", None)
        match = {"models": [name]}
        pool = {"name": name, "match": match, "endpoints": endpoints}
        fleet["pools"].append({**pool, "health": dict(vision["health"])})


async def pace(http, tritons, model, at, batch_ms):
    """Let a batch of a model take so long on a replica."""
    here = tritons.run.path / "repositories" / at
    if not (here / model).exists():
        shutil.copytree(here / "vision", here / model)
    config = (here / "vision" / "config.pbtxt").read_text("utf-8")
    assert config.count('string_value: "2"') == 1
    text = config.replace('string_value: "2"', f'string_value: "{batch_ms}"')
    (here / model / "config.pbtxt").write_text(text, "utf-8")
    url = f"{tritons.replica(at).http_url}/v2/repository/models/{model}/load"
    async with http.post(url) as answer:
        assert answer.status == 200, await answer.text()


@pytest.fixture
async def paced(http, tritons):
    """Load both models, quick; unload them at the end."""
    for at in AT:
        for model in (ONE, ALL):
            await pace(http, tritons, model, at, QUICK_MS)
    yield
    for at in AT:
        for model in (ONE, ALL):
            url = f"{tritons.replica(at).http_url}/v2/repository/models/{model}/unload"
            async with http.post(url) as answer:
                assert answer.status == 200
            shutil.rmtree(tritons.run.path / "repositories" / at / model)


@pytest.mark.usefixtures("paced")
async def test_a_triton_that_becomes_slower_is_in_status(http, tritons, new_stack):
    """Within a minute; nothing of the kind is said before."""
    stack, rng = await new_stack(fleet=with_paced), random.Random(SEED)
    status, running = status_of(stack.admin_address), set()

    async def ask(model) -> None:
        async with http.post(f"{stack.http_url}/v2/models/{model}/infer", data=BODY) as answer:
            assert answer.status == 200, await answer.text()

    async def load(model) -> None:
        while True:
            await asyncio.sleep(rng.expovariate(PER_S))
            running.add(task := asyncio.create_task(ask(model)))
            task.add_done_callback(lambda ended: (running.discard(ended), ended.result()))

    loads = [asyncio.create_task(load(model)) for model in SAID]
    try:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            await asyncio.sleep(1.0)
            early = [each for each in await status() if " is slow" in each]
            assert not early
        await pace(http, tritons, ONE, "r2", SLOW_MS)
        for at in AT:
            await pace(http, tritons, ALL, at, SLOW_MS)
        began, found, seen = time.monotonic(), {}, []
        while found.keys() != SAID.keys() and time.monotonic() < began + WITHIN_S:
            await asyncio.sleep(0.5)
            seen = await status()
            for pool, words in SAID.items():
                if pool not in found and any(words in each for each in seen):
                    found[pool] = round(time.monotonic() - began, 1)
        sys.stdout.write(f"said after {found} s, seed {SEED}\n{seen}\n")
        assert found.keys() == SAID.keys(), seen
    finally:
        for each in loads:
            each.cancel()
        await asyncio.gather(*loads, *running, return_exceptions=True)
