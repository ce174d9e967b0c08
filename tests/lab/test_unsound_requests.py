"""Requests that would end a Triton, through the gateway to real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from support.mistakes.request import INFER
from support.record_mistakes import unpacked
from support.streams import GRPC_INFER
from support.traffic import GENERATE, fresh_prompt
from tidegate_api.names import REASON_HEADER

FILE = Path(__file__).parents[1] / "contract/fixtures/triton-2.51.0/mistakes.json"
DEADLY: list[dict[str, Any]] = [
    each
    for each in json.loads(FILE.read_text())["mistakes"]
    if "died" in each["answer"] and "/mirror/" not in each["path"]
]
TRITON_TAKES = 8189
"""Bytes of headers that Triton accepts, with what Envoy adds."""


def pids(tritons) -> list[int]:
    return [tritons.supervisor.pid(replica.name) for replica in tritons.replicas]


async def test_no_recorded_killer_reaches_a_replica(http, stack, tritons):
    """Each killed a Triton alone; through the gateway it is the caller's mistake."""
    before = pids(tritons)
    for mistake in DEADLY:
        body = unpacked(mistake["body"])
        async with http.post(stack.http_url + mistake["path"], data=body) as answer:
            reason = answer.headers.get(REASON_HEADER)
            assert answer.status == 400
            assert reason in {"bad-shape", "too-deep", "too-complex"}
            assert "error" in await answer.json(content_type=None)
    assert pids(tritons) == before
    assert all(tritons.supervisor.running(replica.name) for replica in tritons.replicas)


async def test_a_killer_over_grpc_is_invalid(stack):
    """The status is that of a caller's mistake, with a sentence that says what is wrong."""
    call = service_pb2.ModelInferRequest(model_name="counter", raw_input_contents=[b""])
    call.inputs.add(name="value", datatype="INT32", shape=[2**62])
    async with grpc.aio.insecure_channel(stack.grpc_address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(GRPC_INFER)(call.SerializeToString(), timeout=20)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "declares" in (caught.value.details() or "")


@pytest.mark.parametrize("count", [1, 60])
async def test_headers_are_refused_before_triton_closes_on_them(http, stack, count):
    """Each length is either served or refused with 431; no connection to a replica breaks."""
    statuses = []
    for size in range(6600, TRITON_TAKES + 200, 100):
        padding = {f"x-pad-{index}": "a" * (size // count - 12) for index in range(count)}
        body = {"text_input": fresh_prompt(8), "max_tokens": 1}
        async with http.post(stack.http_url + GENERATE, json=body, headers=padding) as answer:
            statuses.append(answer.status)
            await answer.read()
    assert set(statuses) == {200, 431}
    assert statuses == sorted(statuses)


async def test_a_mistake_that_kills_nothing_is_answered_by_triton(http, stack):
    """The caller learns from the replica what is wrong."""
    async with http.post(stack.http_url + INFER, json={}) as answer:
        assert (answer.status, answer.headers.get(REASON_HEADER)) == (500, None)
