"""An engine's own 404 through a real Envoy: it is neither repeated nor marked as a rate limit.

The engines answer what vLLM 0.32.0 answered (``tests/contract/fixtures/vllm-0.32.0/not-found``).
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from aiohttp import web

from support.named_replicas import NamedReplica
from support.traffic import eventually, picker_state
from tidegate.stack.local import LocalStack
from tidegate.stack.tritons.replica import TritonReplica

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

RECORDED = Path(__file__).parents[1] / "contract" / "fixtures" / "vllm-0.32.0" / "not-found"
COMPLETIONS, RERANK, RESPONSES = "/v1/completions", "/v1/rerank", "/v1/responses"
ASKED = {
    "adapter": (COMPLETIONS, {"model": "tiny:sql", "prompt": "a", "max_tokens": 1}),
    "path": (RERANK, {"model": "tiny", "query": "a", "documents": ["b"]}),
    "response": (RESPONSES, {"model": "tiny", "input": "a", "previous_response_id": "resp_1"}),
}


def recorded(name: str) -> bytes:
    """Return the recorded body of an answer."""
    return (RECORDED / f"{name}.json").read_bytes()


class Engine(NamedReplica):
    """An engine that has the model ``tiny`` and answers all else with a recorded 404."""

    answer = ""

    async def _ready(self, request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response(body=recorded("models"))
        return web.Response(status=404 if "/v2/repository" in request.path else 200)

    async def _infer(self, request: web.Request) -> web.Response:
        if not self.answer:
            return await super()._infer(request)
        await request.read()
        self.asked.append(request.path)
        return web.json_response(body=recorded(self.answer), status=404)


@pytest.fixture(scope="module")
async def world(demo_extra: None) -> AsyncIterator[tuple[LocalStack, list[Engine]]]:  # noqa: ARG001 - skips first
    """Run a stack over two engines."""
    async with AsyncExitStack() as exit_:
        engines = [Engine(name) for name in ("one", "two")]
        for engine in engines:
            await exit_.enter_async_context(engine.serve())

        def over(fleet: dict[str, Any]) -> None:
            ends = [{"id": one.name, "http": one.http} for one in engines]
            fleet["pools"] = [
                {
                    "name": "chat",
                    "match": {
                        "models": ["tiny", "toy-llm"],
                        "paths": [COMPLETIONS, RERANK, RESPONSES],
                    },
                    "endpoints": ends,
                    "health": {"path": "/health", "interval": "300ms", "timeout": "20s"},
                }
            ]

        known = [
            TritonReplica(
                name=one.name,
                http=one.http,
                grpc=one.grpc,
                metrics="127.0.0.1:1",
                variant="stable",
                models={"toy-llm": ("1",)},
            )
            for one in engines
        ]
        stack = LocalStack(replicas=known, models=("toy-llm",), fleet=over)
        yield await exit_.enter_async_context(stack), engines


@pytest.mark.parametrize("name", ASKED)
async def test_an_engines_own_404_reaches_the_client_as_it_is(http, world, name):
    """One engine is asked, although the other one has the model too."""
    stack, engines = world

    async def placed() -> bool:
        listed = (await picker_state(http, stack))["probing"]["placement"]
        return all(listed[one.name] and "tiny" in listed[one.name]["models"] for one in engines)

    assert await eventually(placed)
    path, body = ASKED[name]
    for engine in engines:
        engine.answer = name
        engine.asked.clear()
    for _ in range(4):
        async with http.post(stack.http_url + path, json=body) as answer:
            assert answer.status == 404
            assert await answer.read() == recorded(name)
            assert "x-envoy-ratelimited" not in answer.headers
    assert sum(len(engine.asked) for engine in engines) == 4


def test_the_recorded_answers_are_404s_that_only_their_text_tells_apart():
    """So which of them may be repeated cannot be read of the answer."""
    for name in ASKED:
        assert orjson.loads(recorded(name))
