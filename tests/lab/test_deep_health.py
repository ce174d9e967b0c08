"""Publication of one picker's health findings, and health that replicas report.

One Envoy over three replicas, asked through one picker; a second picker only listens.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from functools import partial

import aiohttp
import grpc
import pytest

from support.replicas import PATIENT, Replica, stack_over
from support.shown_health import eds_health, placed, shown
from support.spans import collecting
from support.traffic import GENERATE, Traffic, admin, eventually, fresh_prompt, metric
from tidegate.stack.local import PICKER
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.spawning import service_environment
from tidegate.stack.processes.supervisor import Supervisor
from tidegate.stack.processes.waiting import http_ok, wait_until
from tidegate_api.admin.v1 import admin_pb2
from tidegate_common.children import module_command

POOL = {
    "outlier": {"base_ejection": "500ms", "interval": "2s"},
    "health": {
        "interval": "300ms",
        "timeout": PATIENT,
        "unhealthy_after": 1,
        "share": True,
        "repository": True,
    },
    "telemetry": {"orca": True},
}


def body():
    """Return a short request with a prompt that is in no cache."""
    return {"text_input": fresh_prompt(64), "max_tokens": 2}


@pytest.fixture(scope="module")
async def replicas():
    """Run three replicas; each test leaves them healthy."""
    return [Replica(f"r{number}") for number in (1, 2, 3)]


@pytest.fixture(scope="module")
async def stack(demo_extra, replicas):  # noqa: ARG001 - skips first
    """Run one stack over the replicas."""
    async with stack_over(*replicas, more=POOL) as running:
        yield running


@pytest.fixture(scope="module")
async def sink():
    """Run a collector at ``address``."""
    async with collecting() as made:
        yield made


@pytest.fixture(scope="module")
def listen():
    """Return the listen address of the second picker."""
    with HeldPorts() as ports:
        yield ports.address()


@pytest.fixture(scope="module")
async def other(stack, sink, listen):
    """Run a second picker and return the address of its pages; Envoy does not use it by default."""
    supervisor = Supervisor(stack.run.logs)
    with HeldPorts() as ports:
        page = ports.address()
        command = module_command("ext_proc", "--id", "picker-2", "--listen", listen)
        command += ("--metrics", page, "--xds", stack.addresses.ads, "--otlp", sink.address)
        await supervisor.start("picker-2", command, service_environment())
        async with aiohttp.ClientSession() as session:
            await wait_until(
                lambda: http_ok(session, f"http://{page}/healthz"),
                "the second picker",
                timeout_s=60,
                supervisors=(supervisor,),
            )
        yield page
        await supervisor.stop()


async def more_than(replica, asked):
    """Return whether a replica got another request."""
    return len(replica.asked) > asked


async def test_what_one_picker_finds_reaches_all(http, stack, other, replicas, record_property):
    """A finding reaches the other picker, Envoy and operators, until the condition ends."""
    sick = replicas[0]

    async def reported() -> bool:
        return (await shown(http, other, sick.name))["conditions"] == ["told"]

    async def marked() -> bool:
        return await eds_health(http, stack, sick) == "UNHEALTHY"

    async def listed(stub) -> bool:
        sick = (await stub.GetStatus(admin_pb2.GetStatusRequest())).sick
        found = [(one.pool, one.endpoint, one.pickers, one.told) for one in sick]
        # It is not ejected while it is being tried.
        named = [list(one.conditions)[:2] == ["dead-backend", "ejected"] for one in sick]
        return found == [("llm", "r1", 1, True)] and all(named)

    async def over() -> bool:
        well = (await shown(http, other, sick.name))["conditions"] == []
        return well and await eds_health(http, stack, sick) == "HEALTHY"

    async with Traffic(http, stack.http_url + GENERATE, body, workers=4, pause_s=0.01):
        try:
            sick.status = 500
            begun = time.monotonic()
            assert await eventually(reported)
            assert await eventually(marked)
            told_s = time.monotonic() - begun
            async with admin(stack) as stub:
                assert await eventually(lambda: listed(stub))

            async def counted() -> bool:
                return await metric(http, stack.control_metrics, "tidegate_xds_told_replicas") == 1

            assert await eventually(counted)
        finally:
            sick.status = 200
        begun = time.monotonic()
        assert await eventually(over)
        record_property("told", f"{told_s:.2f} s")
        record_property("over", f"{time.monotonic() - begun:.2f} s")
        assert await eventually(partial(more_than, sick, len(sick.asked)))


async def test_what_a_picker_found_ends_with_it(http, stack, other, replicas):
    """The findings of a killed picker are withdrawn."""
    sick = replicas[1]

    async def reported() -> bool:
        return (await shown(http, other, sick.name))["conditions"] == ["told"]

    async def over() -> bool:
        return (await shown(http, other, sick.name))["conditions"] == []

    sick.status = 500
    try:
        async with Traffic(http, stack.http_url + GENERATE, body, workers=4, pause_s=0.01):
            assert await eventually(reported)
        await stack.kill_picker()
        assert await eventually(over)
    finally:
        sick.status = 200
        if not stack._supervisor.running(PICKER):
            await stack.start_picker()


async def test_a_model_that_the_repository_does_not_have_ready(http, stack, replicas):
    """The replica gets none of its requests although its readiness returns 200, and is not sick."""
    sick = replicas[2]
    row = {"name": "toy-llm", "version": "1"}
    for other in replicas[:2]:
        other.index = ({**row, "state": "READY"},)
    sick.index = ({**row, "state": "UNAVAILABLE", "reason": "why"},)
    try:

        async def known() -> bool:
            rows = [await placed(http, stack, one.name, "toy-llm") for one in replicas]
            return [row.get("state") for row in rows] == ["READY", "READY", "UNAVAILABLE"]

        assert await eventually(known)
        assert (await placed(http, stack, sick.name, "toy-llm"))["reason"] == "why"
        assert (await shown(http, stack.picker_metrics, sick.name))["conditions"] == []
        asked = len(sick.asked)
        async with Traffic(http, stack.http_url + GENERATE, body, workers=4, pause_s=0.02) as load:
            await load.more(40)
        assert not load.failures
        assert len(sick.asked) == asked
        sick.index = replicas[0].index
        async with Traffic(http, stack.http_url + GENERATE, body, workers=4, pause_s=0.01):
            assert await eventually(partial(more_than, sick, asked))
    finally:
        for one in replicas:
            one.index = ()


async def test_a_404_of_each_replica_is_repeated_on_each_once(http, stack, replicas):
    """The last one's is marked; a model that answers 404 itself is soon not repeated at all."""
    for one in replicas:
        one.status, one.index = 404, ({"name": "toy-llm", "version": "1", "state": "READY"},)
    try:

        async def known() -> bool:
            rows = [await placed(http, stack, one.name, "toy-llm") for one in replicas]
            return all(row.get("state") == "READY" for row in rows)

        async def asked() -> int:
            before = sum(len(one.asked) for one in replicas)
            async with http.post(stack.http_url + GENERATE, json=body()) as answer:
                assert answer.status == 404
                limited = answer.headers.get("x-envoy-ratelimited")
            count = sum(len(one.asked) for one in replicas) - before
            assert (limited is not None) == (count == 3)
            return count

        async def final() -> bool:
            return await asked() == 1

        assert await eventually(known)
        assert await asked() == 3
        assert await eventually(final)
    finally:
        for one in replicas:
            one.status, one.index = 200, ()


async def test_load_reports_in_answers_become_readings(http, stack, replicas):
    """Load reports requested by header become readings with an age; invalid ones are ignored."""
    teller, garbler, _ = replicas
    teller.loads = 'JSON {"cpu_utilization": 0.5, "named_metrics": {"kv_cache_utilization": 0.25}}'
    garbler.loads = "JSON {"
    try:
        async with Traffic(http, stack.http_url + GENERATE, body, workers=3, pause_s=0.02) as load:
            await load.more(30)
        assert not load.failures
        assert teller.asked[-1]["endpoint-load-metrics-format"] == "json"

        async with http.post(stack.http_url + GENERATE, json=body()) as answer:
            assert not [name for name in answer.headers if name.lower().startswith("endpoint-load")]

        async def heard() -> bool:
            return bool((await shown(http, stack.picker_metrics, teller.name))["readings"])

        assert await eventually(heard)
        (reading,) = (await shown(http, stack.picker_metrics, teller.name))["readings"]
        assert (reading["kv_used"], reading["cpu_used"]) == (0.25, 0.5)
        assert reading["queued"] is None
        assert 0.0 <= reading["age_s"] < 30.0
        assert not (await shown(http, stack.picker_metrics, garbler.name))["readings"]
    finally:
        teller.loads = garbler.loads = ""


async def test_a_retried_prompt_is_expected_where_it_was_served(http, stack, replicas):
    """After the access-log entry, the picker's index contains its blocks at the serving replica."""
    sick, *well = replicas

    async def held(name: str) -> int:
        return (await shown(http, stack.picker_metrics, name))["index_blocks"]

    before = {replica.name: await held(replica.name) for replica in well}
    served: Counter[str] = Counter()
    asked = len(sick.asked)
    sick.closes = True
    try:

        async def retried() -> bool:
            prompt = {"text_input": fresh_prompt(4096), "max_tokens": 1}
            async with http.post(stack.http_url + GENERATE, json=prompt) as answer:
                served[(await answer.json())["text_output"]] += 1
            return len(sick.asked) > asked

        async def credited() -> bool:
            expected = {name: blocks + 15 * served[name] for name, blocks in before.items()}
            return all([await held(name) >= least for name, least in expected.items()])

        assert await eventually(retried)
        assert await eventually(credited)
    finally:
        sick.closes = False


async def test_a_traced_request_is_traced_through(http, stack, other, sink, listen, replicas):  # noqa: ARG001 - the second picker must run
    """The picker's span is part of Envoy's trace and is the parent of the replica's span."""
    trace = "0af7651916cd43dd8448eb211c80319c"
    fleet = stack.read_fleet()
    stack.write_fleet({**fleet, "pickers": {"addresses": [listen]}})
    try:

        async def traced() -> bool:
            headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01", "tracestate": "v=1"}
            url = stack.http_url + GENERATE
            async with http.post(url, json=body(), headers=headers) as answer:
                assert answer.status == 200
            return bool(sink.spans)

        assert await eventually(traced)
        span = sink.spans[0]
        assert (span["name"], span["traceId"]) == ("tidegate.pick", trace)
        assert span["parentSpanId"] == "b7ad6b7169203331"
        heard = [one for replica in replicas for one in replica.asked if "traceparent" in one]
        ours = {one["traceparent"].split("-")[2] for one in heard}
        assert span["spanId"] in ours
        assert {one["tracestate"] for one in heard} == {"v=1"}
        known = len(sink.spans)
        async with http.post(stack.http_url + GENERATE, json=body()) as answer:
            assert answer.status == 200
        await asyncio.sleep(1.2)  # longer than spans wait to be sent
        late = sink.spans[known:]
        assert all(span["traceId"] == trace for span in late)
    finally:
        stack.write_fleet(fleet)


async def test_a_report_of_nonsense_ends_its_stream(stack):
    """The control server rejects an invalid report with a reason and continues."""
    from tidegate_api.fleet.v1 import report_pb2, report_pb2_grpc  # noqa: PLC0415 - only here

    async with grpc.aio.insecure_channel(stack.addresses.ads) as channel:
        call = report_pb2_grpc.PickerReportsStub(channel).Report()
        finding = report_pb2.Finding(pool="llm", id="r1", conditions=["x" * 65])
        await call.write(report_pb2.PickerReport(picker_id="p", findings=[finding]))
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
