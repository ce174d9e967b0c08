"""Vectors of the endpoint-picker protocol that need a real Envoy.

``docs/reference/vectors.md`` says what differs from the vectors.
"""

from __future__ import annotations

import asyncio
import json

import pytest
import tritonclient.grpc.aio as triton_grpc

from support.traffic import GENERATE, admin, eventually, fresh_prompt, metric, vision_inputs
from tidegate.stack.processes.ports import HeldPorts
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.names import REASON_HEADER, SERVED_BY_HEADER


async def test_no_picker_and_fail_closed(http, new_stack):
    """V13, V111: without a picker, requests fail if the fleet is fail-closed; V8 is the default."""
    stack = await new_stack(fleet={"pickers": {"fail_open": False}})
    body = {"text_input": fresh_prompt(), "max_tokens": 1}
    async with http.post(stack.http_url + GENERATE, json=body) as answer:
        assert answer.status == 200
    await stack.kill_picker()
    async with http.post(stack.http_url + GENERATE, json=body) as answer:
        assert 500 <= answer.status <= 504
    await stack.start_picker()

    async def served() -> bool:
        async with http.post(stack.http_url + GENERATE, json=body) as answer:
            return answer.status == 200

    assert await eventually(served)


@pytest.mark.parametrize("transport", ["grpc", "nghttp2"])
async def test_the_replica_that_served_is_credited(http, new_stack, transport):
    """V7, V115: the pick refuses connections; the picker learns which fallback served."""
    with HeldPorts() as ports:
        unused = ports.address()

        def first_is_dead(fleet):
            (pool,) = [each for each in fleet["pools"] if each["name"] == "vision"]
            pool["endpoints"][0]["grpc"] = unused
            pool["routing"]["policy"] = "round-robin"
            # Only one pool may know the address: one id, one address.
            pool["endpoints"][0]["id"] = "dead"
            del pool["endpoints"][0]["http"], pool["endpoints"][0]["metrics"]

        # A stack of its own: a picker that runs already may look at the replica before it is asked.
        stack = await new_stack(fleet=first_is_dead, transport=transport)
        name = "tidegate_picker_feedback_retried_total"
        before = await metric(http, stack.picker_metrics, name)
        async with triton_grpc.InferenceServerClient(stack.grpc_address) as client:
            results = await asyncio.gather(
                *(client.infer("vision", vision_inputs()) for _ in range(12))
            )
        assert len(results) == 12

        async def reported() -> bool:
            return await metric(http, stack.picker_metrics, name) > before

        async def settled() -> bool:
            return await metric(http, stack.picker_metrics, "tidegate_picker_in_flight") == 0

        assert await eventually(reported)
        assert await eventually(settled)
        body = {"text_input": fresh_prompt(), "max_tokens": 1}
        async with http.post(stack.http_url + GENERATE, json=body) as answer:
            assert answer.headers[SERVED_BY_HEADER] in {each.http for each in stack.replicas}


async def test_no_available_replica_and_recovery(http, lend_once):
    """V110, V112: without an available replica 503 with a reason; after recovery 200."""
    stack = await lend_once()
    body = {"text_input": fresh_prompt(), "max_tokens": 1}

    async def asked() -> tuple[int, str | None]:
        async with http.post(stack.http_url + GENERATE, json=body) as answer:
            await answer.read()
            return answer.status, answer.headers.get(REASON_HEADER)

    for draining, expected in ((True, (503, "no-endpoints")), (False, (200, None))):
        fleet = stack.read_fleet()
        for pool in fleet["pools"]:
            for endpoint in pool["endpoints"]:
                endpoint["draining"] = draining
        async with admin(stack) as stub:  # the file's edit would be refused
            options = api.ChangeOptions(force=True)
            await stub.Apply(api.ApplyRequest(fleet=json.dumps(fleet), options=options))

        async def as_expected(expected=expected) -> bool:
            return await asked() == expected

        assert await eventually(as_expected)
