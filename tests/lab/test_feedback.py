"""Feedback from Envoy's access log: retries, ejection and recovery of replicas.

One stack over three replicas for all tests; each leaves them well. Times are recorded as properties
of the tests (``--junitxml x.xml -o junit_family=xunit1``) and held only loosely: a busy machine
stretches them.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from support.replicas import Replica, stack_over
from support.traffic import (
    GENERATE,
    GENERATE_STREAM,
    Traffic,
    eventually,
    fresh_prompt,
    metric,
    picker_state,
)
from xds_server.fleet.view import log_slots

OUTLIER = {
    "base_ejection": "1s",
    "interval": "2s",
    "frozen_after": "1500ms",
    "latency_factor": 5,
}


RETRIED = "tidegate_picker_feedback_retried_total"


def body():
    """Return a short request with a prompt that is in no cache."""
    return {"text_input": fresh_prompt(64), "max_tokens": 2}


@pytest.fixture(scope="module")
async def replicas():
    """Run three replicas; each test fails another one, as relapses double the ejection time."""
    return [Replica(f"r{number}") for number in (1, 2, 3)]


@pytest.fixture(scope="module")
async def stack(empty_stack, replicas):
    """Lend the empty stack over the replicas."""
    # Without limits, as those that are learned while a replica hangs let a request wait for longer
    # than it may.
    more = {"outlier": OUTLIER, "circuit_breaker": {"min_retries": 100}}
    more |= {"routing": {"limit": "none"}}
    async with empty_stack.over(*replicas, more=more) as running:
        yield running


async def conditions(http, stack, name):
    """Return the conditions of a replica in the picker."""
    state = await picker_state(http, stack)
    return state["router"]["pools"]["llm"]["endpoints"][name]["conditions"]


@pytest.mark.parametrize(
    ("number", "sickness", "named"),
    [
        (0, {"status": 500}, "dead-backend"),
        (1, {"closes": True}, "ejected"),
        (2, {"hold_s": 6.0}, "frozen"),
        (0, {"hold_s": 0.3}, "ejected"),
    ],
    ids=["errors", "closes", "hangs", "slow"],
)
async def test_a_sick_replica_is_left_alone_and_comes_back(
    http, stack, replicas, number, sickness, named, record_property
):
    """A failing replica is ejected after few client errors and returns when it recovers."""
    sick = replicas[number]
    well = {field: getattr(sick, field) for field in sickness}
    retried = await metric(http, stack.picker_metrics, RETRIED)

    async def reported() -> bool:
        return named in await conditions(http, stack, sick.name)

    async def back() -> bool:
        return not await conditions(http, stack, sick.name)

    async def asked_again() -> bool:
        return len(sick.asked) > asked

    try:
        # One client's requests show a frozen replica where several of them stand on it.
        url, workers = stack.http_url + GENERATE, 24 if named == "frozen" else 4
        async with Traffic(http, url, body, workers=workers, pause_s=0.01) as load:
            await load.more(60)
            assert not load.failures
            for field, value in sickness.items():
                setattr(sick, field, value)
            begun, before = time.monotonic(), load.count
            assert await eventually(reported)
            out_s, out_failed = time.monotonic() - begun, len(load.failures)
            until_out = load.count - before
            await load.more(200)
            while_out = len(load.failures) - out_failed
            for field, value in well.items():
                setattr(sick, field, value)
            begun = time.monotonic()
            assert await eventually(back)
            back_s = time.monotonic() - begun
            asked, failed = len(sick.asked), len(load.failures)
            await load.more(100)
            # While its last slow request lasts, the others have less to do.
            assert await eventually(asked_again)
            assert len(load.failures) == failed
    finally:
        for field, value in well.items():
            setattr(sick, field, value)
    record_property("out", f"{out_s:.2f} s, {out_failed} of {until_out} requests failed")
    record_property("while_out", f"{while_out} of 200 requests failed")
    record_property("back", f"{back_s:.2f} s")
    if sickness == {"status": 500}:
        # A half-open try costs one request, each relapse doubles the pause.
        assert while_out <= 20
    else:
        assert not load.failures, "each was repeated elsewhere"
    if "closes" in sickness:
        assert await metric(http, stack.picker_metrics, RETRIED) > retried


async def test_a_long_request_that_was_retried_counts_where_it_runs(http, stack, replicas):
    """The charge moves before the request ends: intermediate log entries name the replica."""
    sick, *well = replicas
    feedback = (await picker_state(http, stack))["feedback"]["moved"]
    sick.closes = True
    gate = asyncio.Event()
    for replica in well:
        replica.gate = gate

    async def ask() -> int:
        async with http.post(stack.http_url + GENERATE, json=body()) as answer:
            return answer.status

    async def moved() -> bool:
        state = await picker_state(http, stack)
        endpoints = state["router"]["pools"]["llm"]["endpoints"]
        loads = [endpoints[replica.name]["in_flight"] for replica in replicas]
        return state["feedback"]["moved"] > feedback and loads[0] == 0 and sum(loads) == 6

    try:
        asked = [asyncio.create_task(ask()) for _ in range(6)]
        assert await eventually(moved)
        gate.set()
        assert await asyncio.gather(*asked) == [200] * 6
    finally:
        gate.set()
        sick.closes = False
        for replica in well:
            replica.gate = None

    async def settled() -> bool:
        return await metric(http, stack.picker_metrics, "tidegate_picker_in_flight") == 0

    assert await eventually(settled)

    async def back() -> bool:
        await ask()
        return not await conditions(http, stack, sick.name)

    assert await eventually(back)


async def malformed(http, stack):
    """Send a request that no replica can read; return the status."""
    async with http.post(stack.http_url + GENERATE, data=b"[malformed") as answer:
        await answer.read()
        return answer.status


async def test_malformed_requests_eject_no_replica(http, stack, replicas):
    """They are refused; where they are let through, their status 500 is no replica's failure."""

    def asked():
        return sum(len(replica.asked) for replica in replicas)

    async def judged():
        name = "tidegate_picker_feedback_entries_total"
        return await metric(http, stack.picker_metrics, name, outcome="client")

    before = asked()
    assert [await malformed(http, stack) for _ in range(40)] == [400] * 40
    assert asked() == before
    fleet = stack.read_fleet()
    (pool,) = fleet["pools"]
    routing = {**pool.get("routing", {}), "unsound_requests": "pass"}
    stack.write_fleet({**fleet, "pools": [{**pool, "routing": routing}]})
    try:

        async def passes():
            return await malformed(http, stack) == 500

        assert await eventually(passes)
        before, known = asked(), await judged()
        assert [await malformed(http, stack) for _ in range(40)] == [500] * 40
        assert asked() == before + 40

        async def all_judged():
            return await judged() >= known + 40

        assert await eventually(all_judged)
        for replica in replicas:
            assert not await conditions(http, stack, replica.name)
    finally:
        stack.write_fleet(fleet)

    async def refused():
        return await malformed(http, stack) == 400

    assert await eventually(refused)


async def test_a_replica_that_is_not_ready_gets_no_work(http, stack, replicas):
    """The readiness probe takes effect within one to two seconds."""
    sick = replicas[1]
    sick.ready = False
    try:

        async def reported() -> bool:
            return await conditions(http, stack, sick.name) == ["not-ready"]

        assert await eventually(reported)
        asked = len(sick.asked)
        async with Traffic(http, stack.http_url + GENERATE, body, workers=4, pause_s=0.02) as load:
            await load.more(60)
        assert not load.failures
        assert len(sick.asked) == asked
    finally:
        sick.ready = True

    async def back() -> bool:
        return not await conditions(http, stack, sick.name)

    assert await eventually(back)


async def test_first_bytes_of_streams_teach_the_speed(http, stack, replicas):
    """The access log reports the time to first byte of each streamed prompt to the picker."""

    async def pace():
        return (await picker_state(http, stack))["router"]["pools"]["llm"]["pace"]

    def known(least):
        async def heard() -> bool:
            return (await pace())["first_bytes"] >= least

        return heard

    async with http.post(stack.http_url + GENERATE, json=body()) as answer:
        assert answer.status == 200
    before = (await pace())["first_bytes"]
    for count, gaps in ((10, (0.0,)), (3, (1.3,))):
        for replica in replicas:
            replica.gaps_s = gaps
        try:
            asked = [http.post(stack.http_url + GENERATE_STREAM, json=body()) for _ in range(count)]
            for answer in await asyncio.gather(*asked):
                await answer.read()
                assert answer.status == 200
        finally:
            for replica in replicas:
                replica.gaps_s = ()
        assert await eventually(known(before + count))
        before += count
    assert (await pace())["first_bytes"] == before, "each counts once"


async def test_a_first_byte_is_the_first_token_whenever_headers_come(http, demo_extra):  # noqa: ARG001 - skips first
    """Servers on uvicorn send headers at once; the picker must learn the prefill behind them."""
    early = Replica("early", hold_s=0.4, gaps_s=(0.05,), early_headers=True)
    late = Replica("late", hold_s=0.4, gaps_s=(0.05,))
    whole = Replica("whole", hold_s=0.4)
    async with stack_over(early, late, whole) as own:
        for _ in range(6):
            url = own.http_url + GENERATE_STREAM
            for answer in await asyncio.gather(*(http.post(url, json=body()) for _ in range(3))):
                await answer.read()

        async def answers(name):
            state = await picker_state(http, own)
            return state["router"]["pools"]["llm"]["endpoints"][name]["answers"]

        for replica in (early, late, whole):

            async def known(replica=replica):
                return (await answers(replica.name))["answers"] >= 3

            assert await eventually(known)
            first_byte_s = (await answers(replica.name))["first_byte_s"]
            assert first_byte_s > 0.39, replica.name  # the headers came after 5 ms


async def test_tokens_that_streams_tell_are_counted(http, demo_extra):  # noqa: ARG001 - skips first
    """Envoy reads them from the events; who did not ask for usage is unknown, not 0."""
    piece = b'{"model":"toy-llm","choices":[{"delta":{"content":"tide "}}]}'
    details = b'"prompt_tokens_details":{"cached_tokens":32}'
    usage = b'{"prompt_tokens":40,"completion_tokens":3,' + details + b"}"
    told = b'{"model":"toy-llm","choices":[],"usage":' + usage + b"}"
    replica = Replica("telling", events=(piece, piece, piece, told, b"[DONE]"))
    chat = {"model": "toy-llm", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    match = {"models": ["toy-llm"], "paths": ["/v1/chat/completions"]}
    more = {"match": match, "telemetry": {"usage": True}}
    async with stack_over(replica, more=more) as own:

        async def counted(name, **labels):
            labels |= {"pool": "llm", "model": "toy-llm"}
            return await metric(http, own.picker_metrics, f"tidegate_picker_{name}_total", **labels)

        async def answers():
            return await counted("token_answers", kind="prompt")

        async def tokens():
            return [await counted("tokens", kind=kind) for kind in ("prompt", "cached", "output")]

        async def one_counted():  # the request by which the stack found itself ready
            return await answers() == 1

        assert await eventually(one_counted)
        assert await tokens() == [40, 32, 3]
        for events in (replica.events, (piece, b"[DONE]"), replica.events):
            replica.events = events
            async with http.post(own.http_url + "/v1/chat/completions", json=chat) as answer:
                sent = await answer.read()
            assert sent == b"".join(b"data: " + each + b"\n\n" for each in events)

        async def all_counted():
            return await answers() == 3

        assert await eventually(all_counted)
        assert await tokens() == [120, 96, 9]
        assert await counted("output_tokens_after_first") == 6
        assert await counted("output_seconds") >= 0


async def test_each_picker_gets_the_log_of_its_own_picks(http, stack):
    """With a second picker, entries reach the first picker through the cluster of its slot."""
    fleet = stack.read_fleet()
    picker = stack.addresses.picker
    addresses = [picker, "127.0.0.1:1"]
    slot = log_slots(addresses).index(picker)
    stack.write_fleet({**fleet, "pickers": {"addresses": addresses}})
    try:

        async def heard() -> bool:
            async with http.post(stack.http_url + GENERATE, json=body()) as answer:
                assert answer.status == 200
            url = f"http://{stack.envoy_admin}/clusters?format=json"
            async with http.get(url) as answer:
                clusters = {one["name"]: one for one in (await answer.json())["cluster_statuses"]}
            found = clusters.get(f"tidegate-picker-log/{slot}")
            hosts = [] if found is None else found.get("host_statuses", [])
            return any(
                int(stat.get("value", 0)) > 0
                for host in hosts
                for stat in host["stats"]
                if stat["name"] == "rq_total"
            )

        assert await eventually(heard)
        name = "tidegate_picker_feedback_entries_total"
        before = await metric(http, stack.picker_metrics, name, outcome="good")

        async def counted() -> bool:
            now = await metric(http, stack.picker_metrics, name, outcome="good")
            return now >= before + 20

        async with Traffic(http, stack.http_url + GENERATE, body, workers=4, pause_s=0.02) as load:
            assert await eventually(counted)
        assert not load.failures
    finally:
        stack.write_fleet(fleet)
