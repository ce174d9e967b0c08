"""A whole stack with TLS and certificates of both sides on every connection of services."""

from __future__ import annotations

import asyncio

import aiohttp
import grpc
import orjson
import pytest

from support.identities import Machines
from support.secured_stack import SERVERS, Stack, secured_stack, sign
from support.traffic import eventually
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.admin.v1 import admin_pb2_grpc

SERVICES = ("control", "picker")
pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("demo_extra")]


@pytest.fixture(scope="module", params=["nghttp2", "grpc"])
def transport(request: pytest.FixtureRequest) -> str:
    """Each transport of the picker."""
    return request.param


@pytest.fixture(scope="module")
async def stack(transport: str, tmp_path_factory):
    """Run the stack; its connections live for 1 s."""
    machines = Machines(tmp_path_factory.mktemp("machines"))
    async with secured_stack(machines, transport, max_age_s=1) as started:
        yield started


async def test_requests_flow_and_are_picked_with_tls_everywhere(stack: Stack) -> None:
    """Pools, picks and log entries travel over TLS with certificates of both sides."""
    before = await stack.picker_state()
    assert [await stack.ask() for _ in range(20)] == [200] * 20
    after = await stack.picker_state()
    assert after["passes"] == before["passes"]
    assert await stack.handshakes("tidegate-xds") >= 1
    assert await stack.handshakes("tidegate-picker") >= 1


async def test_plain_clients_reach_no_port(stack: Stack) -> None:
    """Nothing answers without TLS, and with TLS nothing without a certificate."""
    async with grpc.aio.insecure_channel(stack.admin) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await admin_pb2_grpc.AdminStub(channel).GetStatus(api.GetStatusRequest(), timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(aiohttp.ClientError):
        await stack.http.get(f"http://{stack.picker_page}/metrics")


async def test_renewed_certificates_cut_no_request(stack: Stack, transport: str) -> None:
    """All three are replaced under load, and every connection is made anew meanwhile."""
    statuses: list[int] = []
    stop = asyncio.Event()

    async def load() -> None:
        while not stop.is_set():
            statuses.append(await stack.ask())
            await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(load()) for _ in range(4)]
    for name in SERVERS:
        sign(stack.machines, name)

    async def taken() -> bool:
        texts = [stack.run.logs.joinpath(f"{name}.log").read_text() for name in SERVICES]
        return all("certificate_taken" in text for text in texts)

    assert await eventually(taken)
    made = await stack.handshakes("tidegate-picker"), await stack.handshakes("tidegate-xds")

    async def anew() -> bool:
        now = await stack.handshakes("tidegate-picker"), await stack.handshakes("tidegate-xds")
        # An endless stream outlives its age by 10 s, which one transport need not wait for: the
        # control server is the same.
        return now[0] > made[0] + 1 and (now[1] > made[1] or transport == "grpc")

    assert await eventually(anew)
    stop.set()
    await asyncio.gather(*tasks)
    assert set(statuses) == {200}
    assert (await stack.picker_state())["passes"]["by_reason"] == {}

    async def both_are_there() -> bool:  # whose connection ended just now is not
        return {each.kind for each in (await stack.status()).clients} == {"envoy", "picker"}

    assert await eventually(both_are_there)


async def test_no_log_contains_a_key(stack: Stack) -> None:
    """Nor does Envoy's dump of its configuration."""
    keys = [stack.machines.folder.joinpath(name, "tls.key").read_text() for name in SERVERS]
    secrets = [line for key in keys for line in key.splitlines() if "-----" not in line]
    texts = [path.read_text() for path in stack.run.logs.iterdir()]
    async with stack.http.get(f"http://{stack.envoy_admin}/config_dump") as answer:
        texts.append(await answer.text())
    texts.append(orjson.dumps(await stack.picker_state()).decode())
    assert len(texts) >= 5
    assert not [line for line in secrets if any(line in text for text in texts)]
