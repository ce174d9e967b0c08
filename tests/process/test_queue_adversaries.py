"""The queue with hostile callers, and with parts that die, through a real Envoy."""

from __future__ import annotations

import asyncio
import os
import signal

import aiohttp
import pytest
from multidict import CIMultiDict

from support.gated_replicas import GENERATE, GatedStack
from support.in_process_stack import PICKER, SECOND_ENVOY
from support.traffic import eventually, metric
from tidegate_api.names import OBJECTIVE_HEADER, PICKER_CLUSTER, REASON_HEADER, TIMEOUT_HEADER
from xds_server.applications.keepers.unpicked_keeper import UnpickedKeeper

HELD = int(os.environ.get("TIDEGATE_HELD", "60"))
"""Requests that wait at once: all come before the first has waited for as long as it may."""
INFER = "/v2/models/toy-llm/infer"


@pytest.fixture(scope="module")
async def shared():
    """Run two replicas with one slot each behind a picker."""
    async with GatedStack(bursts=True) as running:
        yield running


@pytest.fixture
async def stack(shared):
    """Return that stack, in which nothing runs; leave it with its picker and first fleet."""
    for replica in shared.replicas:
        replica.reset()
    yield shared
    let_all(shared)
    if not shared.supervisor.running(PICKER):
        await shared.restart(PICKER)
    await shared.apply(shared.first_fleet())


async def all_busy(stack):
    """Fill the replicas; return the requests."""
    first = [stack.ask(), stack.ask()]
    assert await stack.busy()
    return first


async def statuses(*tasks):
    """Return the statuses of answers."""
    return [(await task)[0] for task in tasks]


def let_all(stack):
    """Let the replicas answer."""
    for replica in stack.replicas:
        replica.let_all()


def order(stack):
    """Return the ids of the requests that replicas got, in their order."""
    return [each["x-name"] for replica in stack.replicas for each in replica.headers[1:]]


async def test_lies_about_deadlines_are_no_deadlines(stack):
    """What is no number of milliseconds is not read; all wait and are answered."""
    first = await all_busy(stack)
    lies = [
        {TIMEOUT_HEADER: value}
        for value in ("-1", "nan", "1e9", "0", "9" * 400, "0x10", "ten", " ")
    ]
    lies += [{"grpc-timeout": value} for value in ("-1S", "nanS", "999999999S", "1", "5m5m")]
    waits = [stack.ask(each) for each in lies]
    assert await stack.waiting(len(lies))
    let_all(stack)
    assert await statuses(*first, *waits) == [200] * (2 + len(lies))


async def test_of_two_deadlines_the_earlier_holds(stack):
    """Of the two headers, and of one that is sent twice no reading makes a later one."""
    first = await all_busy(stack)
    both = {TIMEOUT_HEADER: "60000", "grpc-timeout": "200m"}
    twice = CIMultiDict([(TIMEOUT_HEADER, "200"), (TIMEOUT_HEADER, "200")])
    for headers in (both, {TIMEOUT_HEADER: "200", "grpc-timeout": "1H"}):
        status, answer = await stack.ask(headers)
        assert (status, answer[REASON_HEADER]) == (504, "deadline-passed")
    repeated = stack.ask(twice)
    assert sum(len(each.headers) for each in stack.replicas) == 2
    let_all(stack)
    await repeated
    assert await statuses(*first) == [200] * 2


async def test_the_rest_of_a_deadline_goes_to_the_replica(stack):
    """What the wait took is taken off; Envoy ends the request when the rest is over."""
    first = await all_busy(stack)
    waits = stack.ask({TIMEOUT_HEADER: "50000", "grpc-timeout": "60S"})
    assert await stack.waiting(1)
    let_all(stack)
    assert await statuses(*first, waits) == [200] * 3
    (got,) = [h for each in stack.replicas for h in each.headers if TIMEOUT_HEADER in h]
    rest_ms = int(got[TIMEOUT_HEADER])
    assert 0 < rest_ms < 50_000
    assert got["grpc-timeout"] == f"{rest_ms}m"
    for replica in stack.replicas:
        replica.open = False
    status, _ = await stack.ask({TIMEOUT_HEADER: "300"})
    assert status == 504
    assert await stack.busy(0)


async def test_a_client_library_says_how_long_it_waits(stack):
    """By the header that the pool names: what it waits no longer for reaches no replica."""
    fleet = stack.first_fleet()
    fleet["pools"][0]["routing"]["timeout_header"] = "x-stainless-read-timeout"
    await stack.apply(fleet)
    first = await all_busy(stack)
    status, answer = await stack.ask({"x-stainless-read-timeout": "0.2"})
    assert (status, answer[REASON_HEADER]) == (504, "deadline-passed")
    assert sum(len(each.headers) for each in stack.replicas) == 2
    # It bounds waits, and no answers.
    patient = stack.ask({"x-stainless-read-timeout": "600"})
    assert await stack.waiting(1)
    let_all(stack)
    assert await statuses(*first, patient) == [200] * 3
    assert not [h for each in stack.replicas for h in each.headers if TIMEOUT_HEADER in h]


async def test_no_priority_goes_before_those_who_say_nothing(stack):
    """Whatever number a caller claims: it can only lower itself."""
    first = await all_busy(stack)
    waits = [stack.ask({"x-name": "modest"})]
    assert await stack.waiting(1)
    claims = (1, 0, -1, 2**63, 2**64 - 1, 1e300, "1", None, True, [1], 2)
    for number, claim in enumerate(claims):
        body = {
            "parameters": {"priority": claim},
            "inputs": [{"name": "x", "shape": [1], "datatype": "INT32", "data": [1]}],
        }
        waits.append(stack.ask({"x-name": f"claim-{number}"}, INFER, body))
    # Triton refuses some of these itself; what the picker refuses does not wait.
    assert await eventually(lambda: joined(stack, waits))
    stack.replicas[0].let()
    assert await eventually(lambda: has(stack, "modest"))
    assert order(stack) == ["modest"]
    let_all(stack)
    assert set(await statuses(*first, *waits)) <= {200, 400}


async def test_an_objective_of_the_fleet_lowers_a_caller(stack):
    """Of any form of request: Envoy tells the picker the header that names it."""
    fleet = stack.first_fleet()
    fleet["pools"][0]["routing"]["low_objectives"] = ["batch"]
    await stack.apply(fleet)
    first = await all_busy(stack)
    low = stack.ask({"x-name": "low", OBJECTIVE_HEADER: "batch"})
    assert await stack.waiting(1)
    other = stack.ask({"x-name": "other", OBJECTIVE_HEADER: "chat"})
    assert await stack.waiting(2)
    stack.replicas[0].let()
    assert await eventually(lambda: has(stack, "other"))
    assert order(stack) == ["other"]
    let_all(stack)
    assert await statuses(*first, low, other) == [200] * 4


async def joined(stack, waits):
    """Return whether each of these requests waits or was answered."""
    done = sum(task.done() for task in waits)
    return await stack.count("tidegate_picker_waiting") + done == len(waits)


async def has(stack, name):
    """Return whether a replica got a request."""
    return name in order(stack)


async def test_callers_that_leave_in_waves_leave_nothing_behind(stack):
    """Replicas get those that stay and no others, and the queue is empty afterwards."""
    first = await all_busy(stack)
    stay = []
    for wave in range(3):
        gone = [stack.ask() for _ in range(20)]
        stay += [stack.ask() for _ in range(3)]
        assert await stack.waiting(20 + len(stay))
        for task in gone:
            task.cancel()
        assert await stack.waiting(len(stay)), wave
    let_all(stack)
    assert await statuses(*first, *stay) == [200] * 11
    assert sum(len(each.headers) for each in stack.replicas) == 11
    assert await stack.waiting(0)


async def test_slow_bodies_keep_no_place_in_the_queue(stack):
    """A request waits from the end of its body; those behind it do not wait for that."""
    first = await all_busy(stack)
    host, _, port = stack.listener.rpartition(":")
    slow = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
    try:
        head = f"POST {GENERATE} HTTP/1.1\r\nhost: t\r\ncontent-length: 18\r\n\r\n"
        for _, writer in slow:
            writer.write(head.encode() + b'{"text_input":"x"')
            await writer.drain()
        waits = [stack.ask() for _ in range(4)]
        assert await stack.waiting(4)
        let_all(stack)
        assert await statuses(*first, *waits) == [200] * 6
        for replica in stack.replicas:
            replica.open = False
        first = await all_busy(stack)
        for _, writer in slow:
            writer.write(b"}")
        assert await stack.waiting(20)
        let_all(stack)
        for reader, _ in slow:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert await statuses(*first) == [200] * 2
    finally:
        for _, writer in slow:
            writer.close()


async def test_a_replica_that_restarts_gets_no_more_than_its_limit(stack):
    """What it had is repeated or broken; what waits goes to the other one, and then to both."""
    first = await all_busy(stack)
    waits = [stack.ask() for _ in range(8)]
    assert await stack.waiting(8)
    await stack.replicas[0].restart()
    for _ in range(4):
        assert await eventually(lambda: has_one(stack.replicas[1]))
        stack.replicas[1].let()
    let_all(stack)
    assert await statuses(*waits) == [200] * 8
    assert set(await statuses(*first)) <= {200, 503}
    assert stack.replicas[0].most <= 1
    # The repeat of what broke passes no limit, so one more than it.
    assert stack.replicas[1].most <= 2


async def has_one(replica):
    """Return whether a replica has a request that waits for its answer."""
    return any(not gate.done() for gate in replica.held)


async def test_retries_do_not_amplify_overload(stack):
    """At 3 times what replicas have room for, Envoy's retries send them no more than was admitted.

    The replicas decline what is above their slots, which Envoy would repeat.
    """
    fleet = stack.first_fleet()
    fleet["pools"][0]["routing"]["max_wait"] = "200ms"
    await stack.apply(fleet)
    for replica in stack.replicas:
        replica.slots = 1

    async def caller():
        return [(await stack.ask())[0] for _ in range(3)]

    async def let_some():
        while True:
            for replica in stack.replicas:
                if any(not gate.done() for gate in replica.held):
                    replica.let()
            await asyncio.sleep(0.05)

    letting = asyncio.create_task(let_some())
    asked = [
        status for each in await asyncio.gather(*(caller() for _ in range(40))) for status in each
    ]
    letting.cancel()
    admitted = asked.count(200)
    seen = sum(len(each.headers) + each.declined for each in stack.replicas)
    assert set(asked) == {200, 429}
    assert asked.count(429) > admitted / 2
    assert seen <= 1.05 * admitted


async def test_a_picker_that_stops_in_order_answers_what_waits(stack):
    """It takes no new requests, and lets go what it has."""
    first = await all_busy(stack)
    waits = [stack.ask() for _ in range(10)]
    assert await stack.waiting(10)
    stopping = asyncio.create_task(stack.supervisor.kill(PICKER, signal.SIGTERM))
    let_all(stack)
    assert await statuses(*first, *waits) == [200] * 12
    await stopping
    assert not stack.supervisor.running(PICKER)


async def test_what_a_picker_lets_pass_no_other_bound_refuses(stack):
    """The bound is of requests without a pick, also where the limits have risen since."""
    await bounded(stack, 2)
    fleet = stack.first_fleet()
    fleet["pools"][0]["circuit_breaker"]["per_endpoint_in_flight"] = 20
    await stack.apply(fleet)
    asked = [stack.ask() for _ in range(40)]
    assert await stack.busy(40)
    let_all(stack)
    assert await statuses(*asked) == [200] * 40


async def answered(tasks, count):
    """Return whether so many requests have an answer."""
    return sum(each.done() for each in tasks) == count


async def bounded(stack, most):
    """Tell Envoy, by what pickers report, how many requests without a pick go on at once."""
    keeper = UnpickedKeeper(stack.control, stack.ads.reports.replicas.merged)

    async def told():
        await keeper.look()
        async with stack.http.get(f"http://{stack.envoy_admin}/runtime") as answer:
            values = (await answer.json())["entries"]
        key = "circuit_breakers.llm/stable/http.high.max_requests"
        return values[key]["final_value"] == str(most)

    assert await eventually(told)


@pytest.mark.parametrize("mode", ["closed", "open", "open, by connections"])
async def test_what_waits_in_a_picker_that_dies_does_not_flood_the_replicas(stack, mode):
    """Closed: all are told to come again. Open: those beyond the limits are.

    With `max_connections_per_endpoint` they wait in Envoy, and none is lost.
    """
    fleet = stack.first_fleet()
    fleet["pools"][0]["routing"]["without_picker"] = mode.partition(",")[0]
    if "," in mode:
        fleet["pools"][0]["circuit_breaker"]["max_connections_per_endpoint"] = 4
    await stack.apply(fleet)
    await bounded(stack, 1024 if "," in mode else 2)
    first = await all_busy(stack)
    waits = [stack.ask() for _ in range(HELD)]
    assert await stack.waiting(HELD)
    await stack.supervisor.kill(PICKER)
    if mode == "open":
        assert await eventually(lambda: answered(waits, HELD - 2))
        assert await stack.busy(4)
    let_all(stack)
    answers = [await each for each in (*first, *waits)]
    if mode == "closed":
        assert {status for status, _ in answers} == {503}
        assert {headers["retry-after"] for _, headers in answers} == {"1"}
        assert sum(len(each.headers) for each in stack.replicas) == 2
    elif mode == "open":
        refused = [headers for status, headers in answers if status == 503]
        assert len(refused) == HELD - 2
        assert {headers["retry-after"] for headers in refused} == {"1"}
        assert sum(len(each.headers) for each in stack.replicas) == 4
    else:
        assert {status for status, _ in answers} == {200}
        assert max(each.most for each in stack.replicas) <= 4
        assert sum(len(each.headers) for each in stack.replicas) == HELD + 2


async def test_two_envoys_share_one_queue(stack):
    """What comes through either waits in one order, and replicas get one request at a time."""
    page = await stack.start_second_envoy()
    # Both listen at the one address; which of them gets a connection is Linux's draw, so each
    # request has a connection of its own.
    connector, kept = aiohttp.TCPConnector(limit=0, force_close=True), stack.http
    async with aiohttp.ClientSession(connector=connector) as stack.http:
        first = await all_busy(stack)
        waits = [stack.ask() for _ in range(HELD)]
        assert await stack.waiting(HELD)
        held = {"envoy_cluster_name": PICKER_CLUSTER}
        for each in (stack.envoy_admin, page):
            stats, active = f"{each}/stats/prometheus?", "envoy_cluster_upstream_rq_active"
            assert await metric(stack.http, stats, active, **held)
        let_all(stack)
        assert await statuses(*first, *waits) == [200] * (HELD + 2)
    stack.http = kept
    assert [each.most for each in stack.replicas] == [1, 1]
    await stack.supervisor.kill(SECOND_ENVOY, signal.SIGTERM)
