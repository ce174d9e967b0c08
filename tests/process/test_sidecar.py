"""An Envoy beside each client, and one picker for all.

``deploy/envoy/sidecar.yaml`` runs as it is, but for ports and for the time that the picker may take
on a busy machine.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from support.existing_envoy import CLIENTS, GENERATE, TURN, FedEnvoy, example
from support.replicas import PATIENT, Replica
from support.traffic import eventually
from tidegate.stack.assets import ExtraMissingError
from tidegate.stack.envoy import envoy_binary
from tidegate_api.admin.v1 import admin_pb2 as api

try:
    envoy_binary()
except ExtraMissingError as missing:
    pytest.skip(str(missing), allow_module_level=True)

CONFIG = example("sidecar.yaml").replace("message_timeout: 1s", f"message_timeout: {PATIENT}")
FLEET = example("clusters-only-fleet.yaml")
WAIT = api.ChangeOptions(author="test", wait=True, timeout_seconds=60)


@pytest.fixture(scope="module")
async def two():
    """Three replicas, and two sidecars with the addresses for their clients."""
    async with AsyncExitStack() as exit_:
        replicas = [await exit_.enter_async_context(Replica(f"r{n}").serve()) for n in (1, 2, 3)]
        envoy = await exit_.enter_async_context(
            FedEnvoy(
                CONFIG,
                [each.address for each in replicas],
                fleet=FLEET,
                node="client-1",
                more=[CLIENTS + 1],
            )
        )
        other = envoy.places[CLIENTS + 1]
        await envoy.start_envoy("sidecar-2", "client-2", other)

        async def serves():
            before = await envoy.picks()
            status, _ = await envoy.post(GENERATE, {"text_input": "x"}, address=other)
            return status == 200 and await envoy.picks() > before

        assert await eventually(serves)
        yield envoy, (envoy.address, other), replicas


async def test_the_picker_counts_the_requests_of_all(two):
    """What one client has in flight moves the other's requests to other replicas."""
    envoy, sidecars, replicas = two
    gate = asyncio.Event()
    for each in replicas:
        each.gate, each.asked = gate, []
    sent = []
    for number, address in enumerate((*sidecars, *sidecars)):
        body = {"text_input": f"{number} {TURN}"}
        headers = {"x-session-id": "one"}  # one variant
        sent.append(asyncio.create_task(envoy.post(GENERATE, body, headers, address)))

        async def charged(number=number):
            return await envoy.counted("tidegate_picker_in_flight") == number + 1

        assert await eventually(charged)

    async def read():  # the picker counts a request before its replica has read it
        return sum(len(each.asked) for each in replicas) == len(sent)

    assert await eventually(read)
    asked = sorted(len(each.asked) for each in replicas)
    gate.set()
    assert {status for status, _ in await asyncio.gather(*sent)} == {200}
    assert asked in ([0, 2, 2], [0, 0, 4]), "two of each stable replica, or all of the canary"


async def test_a_prompt_of_one_client_is_found_for_the_other(two):
    """The index is the picker's; both Envoys follow it."""
    envoy, sidecars, replicas = two
    text = f"a prompt of both {TURN * 8}"
    for each in replicas:
        each.gate, each.asked = None, []
    for address in sidecars * 3:
        headers = {"x-session-id": "same"}
        status, _ = await envoy.post(GENERATE, {"text_input": text}, headers, address)
        assert status == 200
    assert sorted(len(each.asked) for each in replicas) == [0, 0, 6]


async def test_each_sidecar_reports_how_requests_ended(two):
    """Entries of both logs reach the picker."""
    envoy, sidecars, replicas = two

    async def good():
        return (await envoy.state())["feedback"]["entries"].get("good", 0)

    for each in replicas:
        each.gate = None
    for address in sidecars:
        before = await good()
        for number in range(3):
            body = {"text_input": f"{address} {number}"}
            assert (await envoy.post(GENERATE, body, address=address))[0] == 200

        async def more(before=before):
            return await good() >= before + 3

        assert await eventually(more)


async def test_a_drain_reaches_all(two):
    """No sidecar is configured for it; both are clients of their own in the status."""
    envoy, sidecars, replicas = two
    drain = api.SetDrainingRequest(endpoint="r1", draining=True, options=WAIT)
    result = await envoy.stub.SetDraining(drain)
    assert (result.outcome, result.clients) == ("done", 3)
    assert {each.state for each in result.problems} <= {"STALLED"}, result.problems

    async def all_have() -> bool:
        clients = (await envoy.status()).clients
        return {held.state for each in clients for held in each.types} <= {"SYNCED", "NOT_SENT"}

    assert await eventually(all_have)
    for each in replicas:
        each.gate, each.asked = None, []
    for number in range(20):
        body = {"text_input": f"{number} {TURN}"}
        assert (await envoy.post(GENERATE, body, address=sidecars[number % 2]))[0] == 200
    assert not replicas[0].asked
    nodes = {each.node for each in (await envoy.status()).clients if each.kind == "envoy"}
    assert nodes == {"client-1", "client-2"}
    undrain = api.SetDrainingRequest(endpoint="r1", draining=False, options=WAIT)
    assert (await envoy.stub.SetDraining(undrain)).outcome == "done"
