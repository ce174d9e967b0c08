"""Operations under traffic (weights, drains, edits, restarts) fail no request."""

from __future__ import annotations

import asyncio
import math
import uuid

import pytest
import tritonclient.grpc.aio as triton_grpc
import yaml

from support.traffic import (
    GENERATE,
    VISION,
    Traffic,
    admin,
    eventually,
    fresh_prompt,
    in_force,
    metric,
    vision_body,
    vision_inputs,
)
from tidegate_api.admin.v1 import admin_pb2
from tidegate_api.names import SERVED_BY_HEADER

Z = 5.5
"""Of 400 draws with a share of 0.2 or 0.3, fewer than one in 1e7 runs are further off."""

OPTIONS = admin_pb2.ChangeOptions(author="test", wait=True, timeout_seconds=20)


def two_variants(fleet):
    """Give the vision pool a canary on r3 with 30 % of the traffic."""
    pool = next(pool for pool in fleet["pools"] if pool["name"] == "vision")
    pool["variants"] = [{"name": "stable", "weight": 70}, {"name": "canary", "weight": 30}]
    for endpoint in pool["endpoints"]:
        endpoint["variant"] = "canary" if endpoint["id"] == "r3" else "stable"


@pytest.fixture(scope="module")
async def split(lend):
    """Lend the shared stack; its vision pool has a canary."""
    return await lend(fleet=two_variants)


def assert_share(observed: int, total: int, share: float) -> None:
    """Assert that an observed share is within its random interval, with error rate 1e-7."""
    assert abs(observed / total - share) <= Z * math.sqrt(share * (1 - share) / total)


def generate_body():
    """Return a cheap request with a prompt that is in no cache."""
    return {"text_input": fresh_prompt(64), "max_tokens": 1}


async def test_status_shows_every_client(stack):
    """After the start, the status shows Envoy and the picker in sync."""
    async with admin(stack) as operator:
        status = await operator.GetStatus(admin_pb2.GetStatusRequest())
    kinds = {client.kind: {t.type: t.state for t in client.types} for client in status.clients}
    assert kinds["picker"] == {"POOL": "SYNCED"}
    assert {kinds["envoy"][name] for name in ("CDS", "EDS", "LDS", "RDS")} == {"SYNCED"}


@pytest.mark.parametrize("protocol", ["delta", "sotw"])
async def test_a_canary_gets_its_share(http, lend_once, new_stack, protocol):
    """Envoy gives the canary its share of 400 requests from the acknowledgement on."""
    stack = await (lend_once() if protocol == "delta" else new_stack(protocol=protocol))
    canary = stack.replicas[-1].http
    async with admin(stack) as operator:
        result = await operator.SetWeights(
            admin_pb2.SetWeightsRequest(
                pool="llm", weights={"stable": 80, "canary": 20}, options=OPTIONS
            )
        )
    assert result.clients >= 2
    await in_force(stack, result)
    assert set(result.channels) == {"RTDS", "POOL"}
    async with Traffic(http, stack.http_url + GENERATE, generate_body, workers=12) as traffic:
        traffic.served.clear()
        await traffic.more(400)
    assert not traffic.failures
    assert_share(traffic.served[canary], traffic.served.total(), 0.2)


async def test_the_picker_draws_the_same_share(http, split):
    """If only the body names the pool, the picker draws the variant with the same weights."""

    async def drawn() -> float:
        return await metric(
            http,
            split.picker_metrics,
            "tidegate_picker_picks_total",
            pool="vision",
            variant="canary",
        )

    before = await drawn()
    async with triton_grpc.InferenceServerClient(split.grpc_address) as client:
        total = 0
        while total < 400:
            await asyncio.gather(*(client.infer("vision", vision_inputs()) for _ in range(20)))
            total += 20
    assert_share(int(await drawn() - before), total, 0.3)


async def test_envoy_and_picker_draw_alike_for_a_session(http, split):
    """Envoy (HTTP) and the picker (gRPC) draw the same variant for a session."""
    canary = split.replicas[-1].http
    sides = set()

    async def drawn() -> float:
        return await metric(
            http,
            split.picker_metrics,
            "tidegate_picker_picks_total",
            pool="vision",
            variant="canary",
        )

    async with triton_grpc.InferenceServerClient(split.grpc_address) as client:
        for _ in range(60):  # 0.7 ** 60 = 5e-10
            session = {"x-session-id": uuid.uuid4().hex}
            url = split.http_url + VISION
            async with http.post(url, json=vision_body(), headers=session) as answer:
                by_envoy = answer.headers[SERVED_BY_HEADER] == canary
            before = await drawn()
            await client.infer("vision", vision_inputs(), headers=session)
            assert (await drawn() - before == 1) == by_envoy
            sides.add(by_envoy)
    assert sides == {True, False}


async def test_a_drain_fails_no_request(http, stack):
    """A drained replica finishes its requests, gets no new ones, and returns with undrain."""
    drained = stack.replicas[0]
    async with (
        admin(stack) as operator,
        Traffic(http, stack.http_url + GENERATE, generate_body) as traffic,
    ):
        result = await operator.SetDraining(
            admin_pb2.SetDrainingRequest(endpoint=drained.name, draining=True, options=OPTIONS)
        )
        await in_force(stack, result)
        await traffic.more(2 * traffic.workers)  # answers that ended before, and were not read yet
        traffic.served.clear()
        await traffic.more(200)
        assert traffic.served[drained.http] == 0
        await operator.SetDraining(
            admin_pb2.SetDrainingRequest(endpoint=drained.name, draining=False, options=OPTIONS)
        )
        traffic.served.clear()
        await traffic.more(200)
        assert traffic.served[drained.http] > 0
    assert not traffic.failures


@pytest.mark.parametrize("transport", ["grpc", "nghttp2"])
async def test_a_drain_waits_for_work_in_flight(http, lend_once, new_stack, transport):
    """The drain returns only when the replica's last request has ended."""
    stack = await (lend_once() if transport == "grpc" else new_stack(transport=transport))
    body = {"text_input": fresh_prompt(64), "max_tokens": 1200, "stream": True}
    url = stack.http_url + "/v2/models/toy-llm/generate_stream"
    options = admin_pb2.ChangeOptions(author="test", wait=True, timeout_seconds=60)
    async with admin(stack) as operator:
        answer = await http.post(url, json=body)
        await answer.content.readline()
        served = answer.headers[SERVED_BY_HEADER]
        name = next(r.name for r in stack.replicas if r.http == served)
        request = admin_pb2.SetDrainingRequest(endpoint=name, draining=True, options=options)
        drain = asyncio.ensure_future(operator.SetDraining(request))
        stream = asyncio.ensure_future(answer.read())
        await asyncio.wait({drain, stream}, return_when=asyncio.FIRST_COMPLETED)
        # The log tells the picker of the end, and may be faster than the client reads it; the
        # rest of an answer that was not complete takes longer than that.
        await asyncio.wait({stream}, timeout=1.0)
        assert stream.done()
        result = await asyncio.wait_for(drain, 90)
    await in_force(stack, result)


async def test_an_edited_file_is_applied(http, lend_once):
    """The fleet file is watched: a removed replica gets no more requests."""
    stack = await lend_once()
    gone = stack.replicas[1]
    fleet = stack.read_fleet()
    for pool in fleet["pools"]:
        pool["endpoints"] = [e for e in pool["endpoints"] if e["id"] != gone.name]
    async with Traffic(http, stack.http_url + GENERATE, generate_body) as traffic:
        stack.write_fleet(fleet)

        async def forgotten() -> bool:
            traffic.served.clear()
            await traffic.more(60)
            return traffic.served[gone.http] == 0

        assert await eventually(forgotten)
    assert not traffic.failures


async def test_a_broken_file_changes_nothing(http, stack):
    """An invalid fleet file leaves the fleet in force; the status names the error."""
    good = stack.read_fleet()
    bad = yaml.safe_dump(good, sort_keys=False).replace("weight: 100", "weight: many", 1)
    line = next(n for n, text in enumerate(bad.splitlines(), 1) if "many" in text)
    stack.fleet_file.write_text(bad)
    async with admin(stack) as operator:

        async def reported() -> bool:
            status = await operator.GetStatus(admin_pb2.GetStatusRequest())
            return f":{line}:" in status.file_error and "weight" in status.file_error

        assert await eventually(reported)
        async with http.post(stack.http_url + GENERATE, json=generate_body()) as answer:
            assert answer.status == 200
        stack.write_fleet(good)

        async def healed() -> bool:
            return not (await operator.GetStatus(admin_pb2.GetStatusRequest())).file_error

        assert await eventually(healed)


async def test_bad_operator_input_is_one_clear_error(stack):
    """A rejected call names the invalid field and creates no revision."""
    async with admin(stack) as operator:
        before = (await operator.GetFleet(admin_pb2.GetFleetRequest())).revision
        with pytest.raises(Exception, match="stabel"):
            await operator.SetWeights(
                admin_pb2.SetWeightsRequest(pool="llm", weights={"stabel": 1}, options=OPTIONS)
            )
        with pytest.raises(Exception, match=r"pools\[0\]"):
            await operator.Apply(
                admin_pb2.ApplyRequest(fleet="pools: [{name: A}]", source="x", options=OPTIONS)
            )
        assert (await operator.GetFleet(admin_pb2.GetFleetRequest())).revision == before


async def test_the_loss_of_the_control_server_is_harmless(http, new_stack):
    """Without the control server requests are served; its restart changes nothing."""
    stack = await new_stack()
    async with Traffic(http, stack.http_url + GENERATE, generate_body) as traffic:
        await stack.kill_control_server()
        await traffic.more(150)
        async with http.get(f"http://{stack.envoy_admin}/config_dump") as answer:
            before = await answer.json(content_type=None)
        await stack.start_control_server()
        await traffic.more(150)
        async with http.get(f"http://{stack.envoy_admin}/config_dump") as answer:
            after = await answer.json(content_type=None)
        async with admin(stack) as operator:
            result = await operator.SetWeights(
                admin_pb2.SetWeightsRequest(
                    pool="llm", weights={"stable": 50, "canary": 50}, options=OPTIONS
                )
            )
            assert result.clients == 2
        await in_force(stack, result)
        await traffic.more(50)
    assert not traffic.failures
    assert _dynamic(before) == _dynamic(after)


def _dynamic(dump):
    """Return versions of the dynamic resources in a config dump."""
    found = {}
    for config in dump["configs"]:
        for kind in ("dynamic_active_clusters", "dynamic_listeners", "dynamic_route_configs"):
            for entry in config.get(kind, []):
                state = entry.get("active_state", entry)
                inner = state.get("cluster") or state.get("listener") or state.get("route_config")
                found[kind, inner["name"]] = state.get("version_info")
    return found
