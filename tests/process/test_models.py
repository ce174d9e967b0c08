"""The demo's models in a real Triton."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import uuid
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc.aio as triton_grpc

from ext_proc.feedback.probe import Prober
from support.traffic import eventually
from tidegate.stack.assets import asset
from tidegate.stack.tritons.fleet import Tritons

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def replica(tritons):
    """Return a replica with version 1."""
    return tritons.replica("r1")


@pytest.fixture
async def client(replica):
    """Return a gRPC client of that replica."""
    async with triton_grpc.InferenceServerClient(replica.grpc) as connected:
        yield connected


def fresh_prompt(characters: int = 800) -> str:
    """Return a prompt that is in no cache."""
    return (uuid.uuid4().hex * (characters // 32 + 1))[:characters]


async def generate(http, replica, text, **inputs):
    """Request one complete answer; return status and JSON."""
    url = f"{replica.http_url}/v2/models/toy-llm/generate"
    async with http.post(url, json={"text_input": text, **inputs}) as answer:
        return answer.status, await answer.json(content_type=None)


async def series(http, replica) -> dict[str, float]:
    """Return the replica's metrics page as series -> value."""
    async with http.get(replica.metrics_url) as answer:
        page = await answer.text()
    lines = (line.rpartition(" ") for line in page.splitlines() if line and line[0] != "#")
    return {name: float(value) for name, _, value in lines}


def toy(family: str, version: str = "1", **label: str) -> str:
    """Format a series of the toy model like Triton, with labels in alphabetical order."""
    labels = {**label, "model": "toy-llm", "version": version}
    inner = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
    return f"{family}{{{inner}}}"


def sequence_body(value: int) -> list:
    """Return the counter's input."""
    tensor = triton_grpc.InferInput("value", [1], "INT32")
    tensor.set_data_from_numpy(np.array([value], dtype=np.int32))
    return [tensor]


async def test_generate_answers_once_with_all_outputs(http, replica):
    """HTTP generate works on the decoupled model, which sends exactly one response."""
    status, answer = await generate(http, replica, fresh_prompt(64), max_tokens=3)
    assert status == 200
    assert re.fullmatch(r"v1: ([a-z]{3} ){2}", answer["text_output"])
    assert (answer["input_tokens"], answer["cached_tokens"], answer["replica"]) == (16, 0, "r1")


async def test_max_tokens_defaults_to_sixteen(http, replica):
    """``max_tokens`` is optional and defaults to 16."""
    _, answer = await generate(http, replica, "hello")
    assert len(answer["text_output"]) == 16 * 4


async def test_generate_stream_sends_one_event_per_token(http, replica):
    """A stream contains each token as it is generated; together they equal the unary answer."""
    prompt = fresh_prompt(64)
    url = f"{replica.http_url}/v2/models/toy-llm/generate_stream"
    body = {"text_input": prompt, "max_tokens": 5, "stream": True}
    async with http.post(url, json=body) as answer:
        lines = (await answer.text()).splitlines()
    tokens = [json.loads(line.removeprefix("data: "))["text_output"] for line in lines if line]
    _, whole = await generate(http, replica, prompt, max_tokens=5)
    assert len(tokens) == 5
    assert "".join(tokens) == whole["text_output"]


async def test_model_stream_infer_sends_one_response_per_token(client):
    """The gRPC stream contains the same tokens; the last one is marked final."""
    prompt = triton_grpc.InferInput("text_input", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([b"hello"], dtype=np.object_))
    count = triton_grpc.InferInput("max_tokens", [1], "INT32")
    count.set_data_from_numpy(np.array([4], dtype=np.int32))
    stream = triton_grpc.InferInput("stream", [1], "BOOL")
    stream.set_data_from_numpy(np.array([True]))

    async def requests():
        yield {"model_name": "toy-llm", "inputs": [prompt, count, stream]}

    texts, finals = [], []
    async for result, error in client.stream_infer(requests()):
        assert error is None
        texts.append(result.as_numpy("text_output")[0].decode())
        finals.append(result.get_response().parameters["triton_final_response"].bool_param)
    assert texts[0] == "v1: "
    assert finals == [False, False, False, True]


async def test_a_repeated_prompt_hits_the_prefix_cache(http, replica):
    """The second request reuses all full blocks except the last; the counters show it."""
    prompt = fresh_prompt(800)
    before = await series(http, replica)
    _, first = await generate(http, replica, prompt, max_tokens=1)
    _, second = await generate(http, replica, prompt, max_tokens=1)
    after = await series(http, replica)
    assert (first["cached_tokens"], second["cached_tokens"]) == (0, 192)
    grown = {
        name: after[toy(name)] - before.get(toy(name), 0)
        for name in (
            "toy_llm_requests_total",
            "toy_llm_prompt_tokens_total",
            "toy_llm_reused_tokens_total",
        )
    }
    assert list(grown.values()) == [2, 400, 192]


async def test_an_answer_is_cached(http, replica):
    """The next turn of a conversation reuses prompt and answer."""
    prompt = fresh_prompt(640)
    _, first = await generate(http, replica, prompt, max_tokens=32)
    history = prompt + first["text_output"]
    _, second = await generate(http, replica, history + "and then?", max_tokens=1)
    assert second["cached_tokens"] == (640 + 128) // 4


async def test_the_gauges_speak_trtllm(http, replica):
    """All series of the TensorRT-LLM backend that a router reads are present and consistent."""

    async def read() -> tuple[dict[str, float], dict[str, float]]:
        page = await series(http, replica)
        kinds = ("active", "max", "scheduled", "context", "waiting")
        return page, {
            kind: page[toy("nv_trt_llm_request_metrics", request_type=kind)] for kind in kinds
        }

    def blocks_of(page: dict[str, float]) -> dict[str, float]:
        return {
            kind: page[toy("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type=kind)]
            for kind in ("max", "free", "used", "tokens_per", "reused", "fraction")
        }

    last: list[dict[str, float]] = []

    async def at_rest() -> bool:  # gauges are set one after the other as the last request ends
        last[:] = page, found = await read()
        blocks = blocks_of(page)
        idle = found["active"] == found["scheduled"] == found["waiting"] == 0
        return idle and blocks["free"] + blocks["used"] == blocks["max"]

    assert await eventually(at_rest), last
    page, requests = last
    blocks = blocks_of(page)
    assert requests["max"] == 16
    assert requests["waiting"] == requests["active"] - requests["scheduled"]
    assert blocks["tokens_per"] == 16
    assert page[toy("nv_trt_llm_general_metrics", general_type="timestamp")] > 1e15


async def test_running_requests_show_in_the_gauges(http, replica):
    """While long requests run, active counts them and blocks are used."""
    tasks = [
        asyncio.create_task(generate(http, replica, fresh_prompt(64), max_tokens=2000))
        for _ in range(4)
    ]
    active = toy("nv_trt_llm_request_metrics", request_type="active")
    used = toy("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="used")
    page: dict[str, float] = {}
    try:
        while not all(task.done() for task in tasks):
            page = await series(http, replica)
            if (page[active], page[used]) == (4, 4 * 126):
                break
    finally:
        await asyncio.gather(*tasks)
    assert (page[active], page[used]) == (4, 4 * 126)


async def test_a_cancelled_stream_frees_the_engine(http, replica):
    """A disconnect of the client stops the generation before its end."""
    url = f"{replica.http_url}/v2/models/toy-llm/generate_stream"
    body = {"text_input": fresh_prompt(64), "max_tokens": 4000, "stream": True}
    active = toy("nv_trt_llm_request_metrics", request_type="active")
    turns = toy("nv_trt_llm_general_metrics", general_type="iteration_counter")
    made = []
    while not made or (min(made) >= 4000 and len(made) < 4):  # a busy machine may look too late
        before = (await series(http, replica))[turns]
        async with http.post(url, json=body) as answer:
            await answer.content.readline()
            answer.close()
        while (page := await series(http, replica))[active]:
            pass
        made.append(page[turns] - before)
    assert min(made) < 4000, "each turn makes a token"


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({"text_input": "x", "max_tokens": 0}, "ask for 1 to 4096"),
        ({"text_input": "x" * 70_000}, "shorten the prompt"),
    ],
)
async def test_a_bad_request_is_a_400_that_says_why(http, replica, inputs, reason):
    """The error names the invalid input."""
    status, answer = await generate(http, replica, inputs.pop("text_input"), **inputs)
    assert status == 400
    assert reason in answer["error"]


async def test_a_replica_serves_only_its_version(http, tritons):
    """r1 serves only version 1 and r3 only version 2; their answers show it."""
    _, first = await generate(http, tritons.replica("r1"), "hello", max_tokens=1)
    _, third = await generate(http, tritons.replica("r3"), "hello", max_tokens=1)
    assert (first["text_output"], third["text_output"]) == ("v1: ", "v2: ")
    assert (first["model_version"], third["model_version"]) == ("1", "2")
    missing = f"{tritons.replica('r1').http_url}/v2/models/toy-llm/versions/2/ready"
    async with http.get(missing) as answer:
        assert answer.status == 400


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("toy-llm/versions/2", None),
        ("toy-llm/versions/1", "serves another version of toy-llm than 1"),
        ("absent/versions/1", "has no version 1 of absent that is ready"),
        ("absent", "has no model absent that is ready"),
    ],
)
async def test_a_picker_knows_why_a_replica_is_not_ready(tritons, path, said):
    """By what a real Triton answers to questions about readiness."""
    url = f"{tritons.replica('r3').http_url}/v2/models/{path}/ready"
    prober = Prober(lambda *_: None)
    async with prober.client:

        async def told() -> bool:  # a replica may be late once
            return await prober.probe(url) == said

        assert await eventually(told)


async def test_vision_scores_a_batch(client):
    """The synchronous model answers one row of scores and the replica per image."""
    images = triton_grpc.InferInput("image", [2, 3, 32, 32], "FP32")
    batch = np.zeros((2, 3, 32, 32), dtype=np.float32)
    batch[1, :, :8, :] = 4.0
    images.set_data_from_numpy(batch)
    result = await client.infer("vision", [images])
    scores = result.as_numpy("scores")
    assert scores.shape == (2, 4)
    assert np.allclose(scores.sum(axis=1), 1)
    assert scores[1].argmax() == 0
    assert result.as_numpy("replica").tolist() == [[b"r1"], [b"r1"]]


@pytest.mark.parametrize("make_id", [lambda: uuid.uuid4().int >> 65, lambda: uuid.uuid4().hex])
async def test_counter_sums_a_sequence(client, make_id):
    """Integer and string sequence ids both keep their own sum."""
    sequence = make_id()
    totals = []
    for number, value in enumerate((1, 20, 300)):
        result = await client.infer(
            "counter",
            sequence_body(value),
            sequence_id=sequence,
            sequence_start=number == 0,
            sequence_end=number == 2,
        )
        totals.append(int(result.as_numpy("total")[0]))
    assert totals == [1, 21, 321]


async def test_interleaved_sequences_do_not_mix(client):
    """Many sequences at once each have their own sum."""
    sequences = [uuid.uuid4().hex for _ in range(20)]
    for start in (True, False):
        results = await asyncio.gather(
            *(
                client.infer(
                    "counter",
                    sequence_body(index),
                    sequence_id=sequence,
                    sequence_start=start,
                    sequence_end=not start,
                )
                for index, sequence in enumerate(sequences)
            )
        )
    assert [int(result.as_numpy("total")[0]) for result in results] == [
        2 * index for index in range(20)
    ]


@pytest.mark.usefixtures("demo_extra")
async def test_models_start_from_a_path_with_a_space(http, tmp_path: Path):
    """Models in a folder with a space work through links in the run folder."""
    spaced = tmp_path / "my models"
    shutil.copytree(asset("models"), spaced)
    async with Tritons(1, models=("counter", "toy-llm"), source=spaced) as started:
        status, answer = await generate(http, started.replica("r1"), "hello", max_tokens=1)
    assert (status, answer["text_output"]) == (200, "v1: ")


async def test_a_killed_replica_comes_back_on_its_addresses(http, tritons):
    """After SIGKILL of its process group, a replica restarts with an empty cache."""
    replica = tritons.replica("r2")
    prompt = fresh_prompt()
    await generate(http, replica, prompt)
    await tritons.kill("r2")
    await tritons.restart("r2")
    status, answer = await generate(http, replica, prompt)
    assert (status, answer["cached_tokens"]) == (200, 0)
    assert tritons.supervisor.crash is None
