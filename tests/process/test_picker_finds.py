"""A picker without a control server follows its sources, behind an Envoy that obeys its picks."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from support.existing_envoy import ExistingEnvoy, example
from support.names import NameServer
from support.replicas import PATIENT, Replica
from support.traffic import eventually
from tidegate.stack.assets import ExtraMissingError
from tidegate.stack.envoy import envoy_binary

try:
    envoy_binary()
except ExtraMissingError as missing:
    pytest.skip(str(missing), allow_module_level=True)

GENERATE = "/v2/models/toy-llm/generate"
CONFIG = example("original-dst.yaml").replace("message_timeout: 1s", f"message_timeout: {PATIENT}")


def fleet(listed: Path, named: Replica) -> str:
    """Return a fleet whose replicas are in a file, but for one that is written with a name."""
    port = named.address.rpartition(":")[2]
    pool = {
        "name": "llm",
        "default": True,
        "match": {"models": ["toy-llm"], "paths": ["/v1/completions"]},
        "endpoints": [{"id": "named", "http": f"named.example:{port}"}],
        "endpoints_from": [{"file": str(listed), "protocols": ["http"]}],
        "membership": {"drain": "3s"},
        "slow_start": {"window": 0},
        "health": {"timeout": PATIENT},
    }
    return json.dumps({"pools": [pool]})


def write(listed: Path, *replicas: Replica) -> None:
    """Replace the file."""
    made = listed.with_suffix(".new")
    made.write_text(json.dumps([{"id": each.name, "http": each.address} for each in replicas]))
    made.rename(listed)


async def test_replicas_come_and_go_without_a_control_server(tmp_path: Path) -> None:
    """No request fails, and a picker that is killed begins anew with what its sources say."""
    listed = tmp_path / "replicas.json"
    async with AsyncExitStack() as exit_:
        server = await exit_.enter_async_context(NameServer())
        server.set("named.example.", "A", ["127.0.0.1"])
        replicas = [await exit_.enter_async_context(Replica(f"r{n}").serve()) for n in range(3)]
        first, second, third = replicas
        write(listed, first)
        envoy = await exit_.enter_async_context(
            ExistingEnvoy(
                CONFIG,
                [each.address for each in replicas],
                *("--dns", "{}:{}".format(*server.address), "--destinations", "one"),
                fleet=fleet(listed, third),
            )
        )
        statuses: Counter[int] = Counter()

        async def flow() -> None:
            number = 0
            while True:
                number += 1
                status, _ = await envoy.post(GENERATE, {"text_input": f"{number} new prompt"})
                statuses[status] += 1

        async def used(replica: Replica) -> bool:
            before = len(replica.asked)
            await asyncio.sleep(0.5)
            return len(replica.asked) > before

        load = asyncio.create_task(flow())
        exit_.callback(load.cancel)
        assert await eventually(lambda: used(first))
        assert await eventually(lambda: used(third)), "the one with a name"
        assert not second.asked
        write(listed, first, second)
        assert await eventually(lambda: used(second))
        write(listed, second)

        async def left() -> bool:
            return not await used(first)

        assert await eventually(left)
        found = (await envoy.state())["fleet"]["found"]
        assert found["finds"]
        assert {each["source"] for each in found["sources"]} == {
            f"file {listed}",
            "name named.example (named)",
        }
        assert set(statuses) == {200}
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
        await envoy.kill_picker()
        await envoy.start_picker()
        for number in range(20):
            status, _ = await envoy.post(GENERATE, {"text_input": f"again {number}"})
            assert status == 200
