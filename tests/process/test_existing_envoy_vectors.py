"""Vectors of the endpoint-picker protocol that need an Envoy, behind one of an operator's own.

The ids are those of ``docs/reference/vectors.md``. Where the conformance suite steers by a header
of its own, the subset does.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from contextlib import AsyncExitStack

import aiohttp
import grpc
import pytest

from support.existing_envoy import (
    CLIENTS,
    GENERATE,
    SECOND,
    TURN,
    ExistingEnvoy,
    edited,
    example,
    llm_d_standalone,
    routes,
)
from support.replicas import PATIENT, Replica
from support.stand_in import StandIn
from support.traffic import eventually, metric
from tidegate.stack.assets import ExtraMissingError
from tidegate.stack.envoy import envoy_binary

try:
    envoy_binary()
except ExtraMissingError as missing:
    pytest.skip(str(missing), allow_module_level=True)

SUBSET = "x-gateway-destination-endpoint-subset"
PROMPTS = itertools.count()
"""Numbers that make prompts new: a repeated one stays where it was answered."""
HOSTS, RANKS = ("127.0.0.1", "127.0.0.2", "127.0.0.3"), 3
OVERRIDE, ORIGINAL = (
    example(name).replace("message_timeout: 1s", f"message_timeout: {PATIENT}")
    for name in ("override-host.yaml", "original-dst.yaml")
)


def fleet_of(*pools):
    """Return the text of a fleet of these pools."""
    return "\n".join(["pools:", *pools])


@pytest.fixture(scope="module")
async def ranks():
    """Three hosts with three replicas each, as ``{(host, rank): replica}``, and an Envoy."""
    async with AsyncExitStack() as exit_:
        found = {
            (host, rank): await exit_.enter_async_context(
                Replica(f"{host}-{rank}", host=host).serve()
            )
            for host in HOSTS
            for rank in range(RANKS)
        }
        pool = ["- name: llm", "  default: true", "  match: {models: [toy-llm]}", "  endpoints:"]
        # Written as another port, by which the support finds the present one.
        places = dict(
            zip(range(9001, 9004), (found[HOSTS[0], n].address for n in range(RANKS)), strict=True)
        )
        for (host, rank), each in found.items():
            address = f"{host}:{9001 + rank}" if host == HOSTS[0] else each.address
            pool.append(f'  - {{id: "{each.name}", http: "{address}"}}')
        envoy = ExistingEnvoy(
            edited(ORIGINAL, llm_d_standalone),
            [each.address for each in list(found.values())[:3]],
            "--destinations",
            "one",
            fleet=fleet_of(*pool),
            places=places,
        )
        yield found, await exit_.enter_async_context(envoy)


def named(found, *wanted):
    """Return subset entries: an address of each pair, or a whole host."""
    return ",".join(found[each].address if isinstance(each, tuple) else each for each in wanted)


A, B, C = HOSTS


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        ([(C, 0)], {(C, 0)}),
        ([(A, 0), (B, 0)], {(A, 0), (B, 0)}),
        ([(A, 0), (B, 0), (C, 0)], {(A, 0), (B, 0), (C, 0)}),
        ([B], {(B, 0), (B, 1), (B, 2)}),
        ([A, (C, 1)], {(A, 0), (A, 1), (A, 2), (C, 1)}),
        (
            [A, (B, 0), (B, 2), C],
            {*((A, n) for n in range(3)), (B, 0), (B, 2), *((C, n) for n in range(3))},
        ),
    ],
    ids=["V1", "V2", "V3", "V4", "V5", "V6"],
)
async def test_only_designated_endpoints_are_asked(ranks, entries, allowed):
    """V1-V6: 100 requests, 10 at a time, reach all that are designated and no other."""
    found, envoy = ranks
    before = {key: len(each.asked) for key, each in found.items()}
    headers = {SUBSET: named(found, *entries)}
    asked: set[tuple[str, int]] = set()
    for turn in range(40):  # the picker draws among those with the same load
        if turn >= 10 and asked == allowed:
            break
        answers = await asyncio.gather(
            *(
                envoy.post(GENERATE, {"text_input": f"{next(PROMPTS)} {TURN}"}, headers)
                for _ in range(10)
            )
        )
        assert {status for status, _ in answers} == {200}
        asked = {key for key, each in found.items() if len(each.asked) > before[key]}
    assert asked == allowed


async def test_pools_by_path_listener_and_protocol():
    """V10-V12: a path, a listener and gRPC each reach their pool, over HTTP/1.1 and h2c."""

    def change(document):
        static = document["static_resources"]
        (first,), (picked, picker) = static["listeners"], static["clusters"]
        h2 = copy.deepcopy(picked)
        h2["name"] = "picked-h2"
        h2["typed_extension_protocol_options"] = picker["typed_extension_protocol_options"]
        static["clusters"].append(h2)
        match = {"prefix": "/inference.GRPCInferenceService/", "grpc": {}}
        routes(document).insert(0, {"match": match, "route": {"cluster": "picked-h2"}})
        second = copy.deepcopy(first)
        second["name"] = "vision"
        second["address"]["socket_address"]["port_value"] = CLIENTS + 1
        (chain,) = second["filter_chains"]
        (strip,) = chain["filters"][0]["typed_config"]["early_header_mutation_extensions"]
        header = {"header": {"key": "tidegate-pool", "value": "vision"}}
        header["append_action"] = "OVERWRITE_IF_EXISTS_OR_ADD"
        strip["typed_config"]["mutations"].append({"append": header})
        static["listeners"].append(second)

    async with AsyncExitStack() as exit_:
        llm = await exit_.enter_async_context(StandIn().serve())
        vision = await exit_.enter_async_context(StandIn().serve())
        pools = [
            f"- {{name: {name}, default: {default}, match: {{models: [{model}], paths: [{path}]}},"
            f" endpoints: [{{id: {name}-1, http: '127.0.0.1:{h1}', grpc: '127.0.0.1:{h2}'}}]}}"
            for name, default, model, path, h1, h2 in (
                ("llm", "true", "toy-llm", "/v1/completions", 9001, 9002),
                ("vision", "false", "eye", "/v1/embeddings", 9003, 9004),
            )
        ]
        places = {9001: llm.http, 9002: llm.grpc, 9003: vision.http, 9004: vision.grpc}
        absent = ["127.0.0.1:1"] * 3
        envoy = ExistingEnvoy(
            edited(ORIGINAL, change),
            absent,
            fleet=fleet_of(*pools),
            places=places,
            more=[CLIENTS + 1],
        )
        await exit_.enter_async_context(envoy)
        for path, body, stood in (
            ("/v1/completions", {"model": "toy-llm", "prompt": "x"}, llm),
            ("/v1/embeddings", {"model": "eye", "input": "x"}, vision),
        ):
            seen = len(stood.seen)
            assert (await envoy.post(path, body))[0] == 200
            assert len(stood.seen) == seen + 1
        seen = len(vision.seen)
        url = f"http://{envoy.places[CLIENTS + 1]}/v1/other"
        async with envoy.http.post(url, json={"prompt": "x"}) as answer:
            assert answer.status == 200
        assert len(vision.seen) == seen + 1
        async with grpc.aio.insecure_channel(envoy.address) as channel:
            for model, stood in ((b"toy-llm", llm), (b"eye", vision)):
                call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
                seen = len(stood.seen)
                await call(b"\x0a" + bytes([len(model)]) + model, timeout=30)
                assert len(stood.seen) == seen + 1


@pytest.fixture
async def stage():
    """Two replicas that may die, and an Envoy that tries the picks in order."""
    async with AsyncExitStack() as exit_:
        doomed = AsyncExitStack()
        await exit_.enter_async_context(doomed)
        first = await doomed.enter_async_context(Replica("r1").serve())
        others = [await exit_.enter_async_context(Replica(name).serve()) for name in ("r2", "r3")]
        envoy = await exit_.enter_async_context(
            ExistingEnvoy(OVERRIDE, [each.address for each in (first, *others)])
        )
        yield envoy, doomed, first, others


async def settled(envoy):
    """Return whether no request is in flight."""
    return await envoy.counted("tidegate_picker_in_flight") == 0


async def held_by(envoy, replica, **settings):
    """Return a request that a replica has begun to answer, or holds."""
    for name, value in settings.items():
        setattr(replica, name, value)
    asked, number = len(replica.asked), 0
    while len(replica.asked) == asked:
        number += 1
        sent = asyncio.create_task(envoy.post(GENERATE, {"text_input": f"{number} {TURN}"}))
        assert await eventually(lambda sent=sent: over(sent, replica, asked))
    return sent


async def over(sent, replica, asked):
    """Return whether a request is answered, or has reached a replica."""
    return sent.done() or len(replica.asked) > asked


async def test_an_endpoint_dies_mid_request(stage):
    """V108: its request ends at once; the next ones go to the others only, all with success."""
    envoy, doomed, first, others = stage
    gate = asyncio.Event()
    waiting = await held_by(envoy, first, gate=gate, closes=True)
    gate.set()
    status, _ = await asyncio.wait_for(waiting, 30)
    assert status >= 500
    await doomed.aclose()
    before = [len(first.asked), sum(len(each.asked) for each in others)]
    for number in range(9):
        assert (await envoy.post(GENERATE, {"text_input": f"after {number} {TURN}"}))[0] == 200
    assert [len(first.asked), sum(len(each.asked) for each in others)] == [before[0], before[1] + 9]
    assert await eventually(lambda: settled(envoy))


async def test_an_endpoint_dies_mid_stream(stage):
    """V109: the client sees the end of its stream as an error at once; nothing stays charged."""
    envoy, doomed, first, _ = stage
    first.gaps_s = (600.0,)
    for number in range(60):
        url = f"http://{envoy.address}{GENERATE}"
        asked = len(first.asked)
        async with envoy.http.post(url, json={"text_input": f"{number} {TURN}"}) as answer:
            if len(first.asked) == asked:
                continue
            assert await answer.content.readany() == b"first "
            closing = asyncio.create_task(doomed.aclose())
            with pytest.raises(aiohttp.ClientPayloadError):
                await asyncio.wait_for(answer.content.read(), 30)
            await closing
            break
    else:
        pytest.fail("the replica was never picked")
    assert await eventually(lambda: settled(envoy))


async def test_the_picker_dies_with_requests_in_flight():
    """V111: fail-closed, at least 500 while it is away, those in flight too; 200 afterwards."""
    async with AsyncExitStack() as exit_:
        served = [await exit_.enter_async_context(Replica(f"r{n}").serve()) for n in (1, 2, 3)]
        envoy = await exit_.enter_async_context(
            ExistingEnvoy(ORIGINAL, [each.address for each in served])
        )
        gate = asyncio.Event()
        for each in served:
            each.gate = gate
        waiting = [
            asyncio.create_task(envoy.post(GENERATE, {"text_input": f"{n}"})) for n in range(4)
        ]

        async def charged():
            return await envoy.counted("tidegate_picker_in_flight") == 4

        assert await eventually(charged)
        await envoy.kill_picker()
        gate.set()
        assert all(status in {200, 500} for status, _ in await asyncio.gather(*waiting))
        for _ in range(3):
            assert (await envoy.post(GENERATE, {"text_input": "x"}))[0] >= 500
        await envoy.start_picker()

        async def answers():
            return (await envoy.post(GENERATE, {"text_input": "x"}))[0] == 200

        assert await eventually(answers)


async def test_another_picker_takes_over():
    """V114: of two the one that stays picks for all, whatever the other had learned."""

    def change(document):
        picker = document["static_resources"]["clusters"][-1]
        (zone,) = picker["load_assignment"]["endpoints"]
        other = copy.deepcopy(zone["lb_endpoints"][0])
        other["endpoint"]["address"]["socket_address"]["port_value"] = SECOND
        zone["lb_endpoints"].append(other)

    async with AsyncExitStack() as exit_:
        served = [await exit_.enter_async_context(Replica(f"r{n}").serve()) for n in (1, 2, 3)]
        envoy = await exit_.enter_async_context(
            ExistingEnvoy(edited(OVERRIDE, change), [each.address for each in served])
        )
        await envoy.start_second()
        pages = (envoy.page, envoy.second[1])

        async def picks(page):
            return await metric(envoy.http, page, "tidegate_picker_picks_total")

        async def both():
            assert (await envoy.post(GENERATE, {"text_input": "x"}))[0] == 200
            return all([await picks(page) for page in pages])

        assert await eventually(both)
        await envoy.kill_picker()
        assert (await envoy.post(GENERATE, {"text_input": "x"}))[0] == 200

        async def alone():
            before = await picks(pages[1])
            for _ in range(4):
                assert (await envoy.post(GENERATE, {"text_input": "x"}))[0] == 200
            return await picks(pages[1]) - before == 4

        assert await eventually(alone)
