"""Invalid bodies: a refusal of the picker, or Triton's error to what can be read."""

from __future__ import annotations

import asyncio
import io
import json

import grpc
import pytest

from support.traffic import GENERATE, VISION, eventually, fresh_prompt, metric
from tidegate_api.names import REASON_HEADER, SERVED_BY_HEADER


@pytest.mark.parametrize("body", ["peek", "full"])
async def test_malformed_json_does_not_reach_triton(http, lend_once, body):
    """What no rule of Triton's parser reads is refused; a body with mistakes has Triton's error."""
    stack = await lend_once(body=body)
    async with http.post(stack.http_url + VISION, data=b'{"inputs": [') as answer:
        assert (answer.status, answer.headers[REASON_HEADER]) == (400, "bad-request")
        assert SERVED_BY_HEADER not in answer.headers
        assert "not valid JSON" in (await answer.json())["error"]
    async with http.post(stack.http_url + VISION, data=b'{"inputs": {}}') as answer:
        assert answer.status == 500
        assert answer.headers[SERVED_BY_HEADER]
        assert REASON_HEADER not in answer.headers
        assert "error" in await answer.json(content_type=None)


async def unary(stack, message: bytes, method: str = "ModelInfer") -> bytes:
    """Send raw bytes as a gRPC message."""
    async with grpc.aio.insecure_channel(stack.grpc_address) as channel:
        call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        return await call(message, timeout=60)


@pytest.mark.parametrize(
    "message", [b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01x", b"\xff\xff\xff", b"\x0b\x14"]
)
async def test_a_grpc_message_that_is_none_is_refused(stack, message):
    """If only an unreadable body names the pool, the picker returns Triton's own INTERNAL."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary(stack, message)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert caught.value.details()


async def test_an_unknown_grpc_model_is_not_found(stack):
    """The picker returns the gRPC status NOT_FOUND."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary(stack, b"\x0a\x07missing")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "missing" in (caught.value.details() or "")


async def test_peek_lets_large_bodies_through(http, stack):
    """A body larger than the picker's limit is served; the picker reads only its first part."""
    body = {"text_input": fresh_prompt(8), "max_tokens": 1, "padding": "x" * 3_000_000}
    data = io.BytesIO(json.dumps(body).encode())
    async with http.post(stack.http_url + GENERATE, data=data) as answer:
        assert answer.status == 200, await answer.text()


async def test_an_aborted_upload_leaves_nothing(http, stack):
    """A client that disconnects during its body leaves no charge and no stream."""
    host, _, port = stack.http_address.rpartition(":")
    for _ in range(5):
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {GENERATE} HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n"
        writer.write(head.encode() + b'{"text_input": "half')
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()

    async def quiet() -> bool:
        held = await metric(http, stack.picker_metrics, "tidegate_picker_in_flight")
        return (
            held == 0
            and await metric(http, stack.picker_metrics, "tidegate_picker_open_streams") == 0
        )

    assert await eventually(quiet)


async def test_a_page_that_is_no_metrics_page_costs_nothing(http, lend_once):
    """A replica with an invalid metrics page still gets requests."""

    def wrong_page(fleet):
        for pool in fleet["pools"]:
            for endpoint in pool["endpoints"]:
                endpoint["metrics"] = f"http://{endpoint['http']}/v2"

    stack = await lend_once(fleet=wrong_page)
    for _ in range(5):
        body = {"text_input": fresh_prompt(), "max_tokens": 1}
        async with http.post(stack.http_url + GENERATE, json=body) as answer:
            assert answer.status == 200
