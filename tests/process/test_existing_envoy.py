"""The picker behind Envoys that the control server does not configure.

``deploy/envoy/`` has the configurations that ``docs/how-to/existing-envoy.md`` shows; they run here
as they are, but for ports and for the time that the picker may take on a busy machine.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack

import aiohttp
import pytest

from support.existing_envoy import (
    GENERATE,
    POSTS,
    TURN,
    ExistingEnvoy,
    converse,
    edited,
    example,
    ext_proc,
    llm_d_standalone,
)
from support.replicas import PATIENT, Replica, stack_over
from support.traffic import eventually, metric
from tidegate.stack.assets import ExtraMissingError
from tidegate.stack.envoy import envoy_binary

try:
    envoy_binary()
except ExtraMissingError as missing:
    pytest.skip(str(missing), allow_module_level=True)

CHAT = "/v1/chat/completions"
BLOCKS = "tidegate_picker_prompt_blocks_total"
SPOOF = {"x-gateway-destination-endpoint": "127.0.0.1:1"}


def patient(text: str) -> str:
    """Return a configuration whose picker may be slow."""
    return text.replace("message_timeout: 1s", f"message_timeout: {PATIENT}")


OVERRIDE = patient(example("override-host.yaml"))
ORIGINAL = patient(example("original-dst.yaml"))
CHART = edited(ORIGINAL, llm_d_standalone)
KINDS = {
    "override-host": (OVERRIDE,),
    "original-dst": (ORIGINAL,),
    "llm-d-standalone": (CHART, "--destinations", "one"),
}


@pytest.fixture
async def replicas():
    """Three replicas."""
    async with AsyncExitStack() as exit_:
        yield [await exit_.enter_async_context(Replica(f"r{n}").serve()) for n in (1, 2, 3)]


def over(replicas, config, *options, **more):
    """Return an Envoy over replicas."""
    return ExistingEnvoy(config, [each.address for each in replicas], *options, **more)


@pytest.fixture(scope="module")
async def shared():
    """Return a function that returns the Envoy of a kind, with its replicas, started once.

    A test leaves it as it found it, or comes after those that mind.
    """
    async with AsyncExitStack() as exit_:
        started = {}

        async def of(kind):
            if kind not in started:
                served = [
                    await exit_.enter_async_context(Replica(f"r{n}").serve()) for n in (1, 2, 3)
                ]
                envoy = await exit_.enter_async_context(over(served, *KINDS[kind]))
                started[kind] = envoy, served
            return started[kind]

        yield of


@pytest.fixture(scope="module")
async def own():
    """Blocks of the conversations that are predicted as cached behind the own listener."""
    async with (
        aiohttp.ClientSession() as http,
        stack_over(*(Replica(f"r{number}") for number in (1, 2, 3))) as stack,
    ):

        async def post(path, body):
            async with http.post(stack.http_url + path, json=body) as answer:
                await answer.read()
                return answer.status

        before = await metric(http, stack.picker_metrics, BLOCKS, part="matched")
        assert set(await converse(post)) == {200}
        return await metric(http, stack.picker_metrics, BLOCKS, part="matched") - before


@pytest.mark.parametrize("kind", KINDS)
async def test_every_post_is_answered_and_finds_its_cache(kind, shared, own):
    """All get a pick, and as many prompt blocks as behind the own listener are where they were."""
    envoy, _ = await shared(kind)
    picks = await envoy.picks()
    matched = await envoy.counted(BLOCKS, part="matched")

    async def post(path, body):
        status, _ = await envoy.post(path, body, SPOOF)
        return status

    assert await converse(post) == [200] * POSTS
    assert await envoy.picks() - picks == POSTS
    found = await envoy.counted(BLOCKS, part="matched") - matched
    assert found == pytest.approx(own, rel=0.05)
    assert await envoy.counted("tidegate_picker_passes_total") == 0
    status, _ = await envoy.post(CHAT, {"model": "llama-3-8b", "messages": []})
    assert status == 200, "the body names the pool"
    status, headers = await envoy.post(CHAT, {"model": "none", "messages": []})
    assert (status, headers["x-tidegate-reason"]) == (404, "unknown-model")


@pytest.mark.parametrize(
    "mode", ["NONE", "BUFFERED", "BUFFERED_PARTIAL", "STREAMED", "FULL_DUPLEX_STREAMED"]
)
async def test_every_body_mode(mode, replicas):
    """What the mode lets the picker read is read, and the body arrives whole in each."""

    def change(document):
        modes = ext_proc(document)["processing_mode"]
        modes |= {"request_body_mode": mode, "request_trailer_mode": "SEND"}
        if mode == "FULL_DUPLEX_STREAMED":
            ext_proc(document)["failure_mode_allow"] = False

    async with over(replicas, edited(OVERRIDE, change)) as envoy:
        before = await envoy.picks()
        body = {"text_input": TURN * 40, "max_tokens": 1}
        for _ in range(10):
            status, _ = await envoy.post(GENERATE, body)
            assert status == 200
        async with envoy.http.get(f"http://{envoy.address}/v2/models/toy-llm/ready") as answer:
            assert answer.status == 200
        assert await envoy.picks() - before >= 10
        read = await envoy.counted(BLOCKS, part="all")
        assert (read > 0) is (mode not in {"NONE", "STREAMED"})
        assert await eventually(lambda: settled(envoy))


async def settled(envoy):
    """Return whether no request is in flight."""
    return await envoy.counted("tidegate_picker_in_flight") == 0


async def test_a_body_before_its_headers(replicas):
    """Headers are skipped, a filter behind holds them: attributes name the pool."""

    def change(document):
        settings = ext_proc(document)
        settings["processing_mode"]["request_header_mode"] = "SKIP"
        settings["request_attributes"] = ["request.path", "request.method"]
        prefix = "type.googleapis.com/envoy.extensions.filters.http"
        (chain,) = document["static_resources"]["listeners"][0]["filter_chains"]
        filters = chain["filters"][0]["typed_config"]["http_filters"]
        buffer = {"@type": f"{prefix}.buffer.v3.Buffer", "max_request_bytes": 2**22}
        filters.insert(1, {"name": "envoy.filters.http.buffer", "typed_config": buffer})

    async with over(replicas, edited(OVERRIDE, change)) as envoy:
        before = await envoy.picks()
        asked = [len(each.asked) for each in replicas]
        for _ in range(12):
            status, _ = await envoy.post(GENERATE, {"text_input": TURN * 8, "max_tokens": 1})
            assert status == 200
        assert await envoy.picks() - before == 12
        more = [len(each.asked) - n for each, n in zip(replicas, asked, strict=True)]
        assert max(more) == 12, "one prompt, one cache"


async def test_the_access_log_judges_and_the_stream_counts(shared):
    """A replica that fails everything is ejected; a request in flight is charged to its end."""
    envoy, replicas = await shared("override-host")
    replicas[0].gate = replicas[1].gate = replicas[2].gate = asyncio.Event()
    waiting = asyncio.create_task(envoy.post(GENERATE, {"text_input": "x"}))

    async def charged():
        return await envoy.counted("tidegate_picker_in_flight") == 1

    assert await eventually(charged)
    replicas[0].gate.set()
    assert (await waiting)[0] == 200
    assert await eventually(lambda: settled(envoy))
    replicas[0].status = 503

    prompts = itertools.count()  # a repeated one stays where it was answered

    async def ejected():
        for number in itertools.islice(prompts, 12):
            await envoy.post(GENERATE, {"text_input": f"{number} {TURN}"})
        told = (await envoy.state())["router"]["pools"]["llm"]["endpoints"]["r1"]
        return "ejected" in told["conditions"]

    assert await eventually(ejected)
    state = await envoy.state()
    assert state["feedback"]["entries"]["good"] > 0
    assert any(name.startswith("llm ") for name in state["feedback"]["attempts"])
    replicas[0].status = 200


async def test_without_a_picker(shared):
    """override_host balances by itself; with ORIGINAL_DST there is no choice. Both recover."""
    for kind, usual in (("override-host", 200), ("original-dst", None)):
        envoy, _ = await shared(kind)
        await envoy.kill_picker()
        status, _ = await envoy.post(GENERATE, {"text_input": "x"}, SPOOF)
        assert status == usual if usual else status >= 500
        await envoy.start_picker()

        async def picked(envoy=envoy):
            before = await envoy.picks()
            status, _ = await envoy.post(GENERATE, {"text_input": "x"})
            return status == 200 and await envoy.picks() > before

        assert await eventually(picked)


async def test_the_replica_that_served_is_credited():
    """V7, V115: picks refuse connections; Envoy tries the next of the list, and says which."""
    async with AsyncExitStack() as exit_:
        living = [await exit_.enter_async_context(Replica(f"r{n}").serve()) for n in (2, 3)]
        async with AsyncExitStack() as first:
            dead = await first.enter_async_context(Replica("r1").serve())
            envoy = await exit_.enter_async_context(over([dead, *living], OVERRIDE))
            await first.aclose()
        for number in range(60):
            status, _ = await envoy.post(GENERATE, {"text_input": f"{number} {TURN}"})
            assert status == 200
            if await envoy.counted("tidegate_picker_served_elsewhere_total"):
                break
        assert await envoy.counted("tidegate_picker_served_elsewhere_total") > 0


async def test_aborts_and_oversize(shared):
    """V118, V119: a caller who leaves ends the charge; a body above Envoy's bound is 413."""
    envoy, replicas = await shared("override-host")
    gate = asyncio.Event()
    for each in replicas:
        each.gate = gate
    waiting = asyncio.create_task(envoy.post(GENERATE, {"text_input": "x"}))

    async def charged():
        return await envoy.counted("tidegate_picker_in_flight") == 1

    assert await eventually(charged)
    waiting.cancel()
    assert await eventually(lambda: settled(envoy))
    gate.set()
    for each in replicas:
        each.gate = None
    status, _ = await envoy.post(GENERATE, b"{" + b" " * 5_000_000 + b"}")
    assert status == 413


async def test_an_edit_of_the_fleet_file_is_followed(shared):
    """V110, V112, V113: replicas leave, all of them too, and come back, without a restart."""
    envoy, _ = await shared("original-dst")
    whole = envoy.fleet.read_text()

    async def answers(status):
        return (await envoy.post(GENERATE, {"text_input": "x"}))[0] == status

    for text, status in (
        (whole[: whole.index("  - {id: r1")].replace("endpoints:", "endpoints: []"), 503),
        (whole, 200),
        ("pools: [", 200),
    ):
        envoy.fleet.write_text(text)
        assert await eventually(lambda status=status: answers(status))

    async def refused():
        return (await envoy.state())["fleet"]["refused"] is not None

    assert await eventually(refused)
    assert await answers(200)
    envoy.fleet.write_text(whole)


async def test_a_subset_in_a_header(shared):
    """Where the edge does not strip it, it limits the choice; none left is 503."""
    envoy, replicas = await shared("llm-d-standalone")
    before = len(replicas[1].asked)
    subset = {"x-gateway-destination-endpoint-subset": replicas[1].address}
    for number in range(6):
        status, _ = await envoy.post(GENERATE, {"text_input": f"{number} {TURN}"}, subset)
        assert status == 200
    assert len(replicas[1].asked) - before == 6
    assert not any("subset" in name.lower() for each in replicas[1].asked[before:] for name in each)
    none = {"x-gateway-destination-endpoint-subset": "10.9.9.9:1"}
    status, headers = await envoy.post(GENERATE, {"text_input": "x"}, none)
    assert (status, headers["x-tidegate-reason"]) == (503, "no-endpoints")
