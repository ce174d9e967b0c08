"""Effects of fleet settings in a real Envoy: limits, weights, pins, mirrors, shedding, TLS."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import Any

import aiohttp
import orjson
import pytest
import tritonclient.grpc.aio as triton_grpc

from support.envoy_pages import clusters, envoy_page, limit, stat
from support.replicas import Replica, stack_over
from support.traffic import (
    GENERATE,
    admin,
    eventually,
    in_force,
    metric,
    picker_state,
    vision_inputs,
)
from tidegate.stack import commands
from tidegate_api.admin.v1 import admin_pb2
from tidegate_api.names import SERVED_BY_HEADER

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("demo_extra")]

# Forced: what an earlier test did to a replica must not refuse a later change.
OPTIONS = admin_pb2.ChangeOptions(author="test", wait=True, timeout_seconds=20, force=True)

Z = 5.5
"""Of 300 draws with a share of 0.4, fewer than one in 1e7 runs are further off."""


@pytest.fixture(scope="module")
def replicas():
    """Run two replicas of the stable variant and one of the canary."""
    return Replica("r1"), Replica("r2"), Replica("r3", "canary")


@pytest.fixture(scope="module")
async def stack(empty_stack, replicas):
    """Lend the empty stack over the replicas; each test applies its fleet."""
    async with empty_stack.over(*replicas) as running:
        yield running


@pytest.fixture(autouse=True)
def _forget(replicas):
    for replica in replicas:
        replica.asked.clear()
        replica.most_at_once = 0
        replica.gate, replica.gaps_s, replica.status = None, (), 200


async def ask(http, stack, **headers: str) -> tuple[int, str]:
    """Send a request; return the status and the serving replica."""
    body = {"text_input": "hello", "max_tokens": 1}
    async with http.post(stack.http_url + GENERATE, json=body, headers=headers) as answer:
        await answer.read()
        return answer.status, answer.headers.get(SERVED_BY_HEADER, "")


async def at_once(http, stack, replica, count: int, until) -> set[int]:
    """Send requests that the replicas hold until a condition is true; return the statuses."""
    replica.gate = asyncio.Event()
    asked = [asyncio.create_task(ask(http, stack)) for _ in range(count)]

    async def holds() -> bool:
        return until(replica, [one for one in asked if one.done()])

    try:
        assert await eventually(holds)
    finally:
        replica.gate.set()
    return {status for status, _ in await asyncio.gather(*asked)}


def as_it_is(_part: dict[str, Any]) -> None:
    """Change nothing."""


async def edited(stack, change=as_it_is, whole=as_it_is):
    """Apply the fleet with a changed pool; all clients must acknowledge it."""
    fleet = stack.read_fleet()
    change(fleet["pools"][0])
    whole(fleet)
    async with admin(stack) as operator:
        result = await operator.Apply(
            admin_pb2.ApplyRequest(fleet=orjson.dumps(fleet).decode(), options=OPTIONS)
        )
    await in_force(stack, result)
    return result


@pytest.mark.parametrize("protocol", ["delta", "sotw"])
async def test_a_limit_changes_without_touching_its_cluster(http, protocol):
    """Limits and slow start use RTDS: they take effect at once, and connections stay open."""
    one, name = Replica("one"), "llm/stable/http"
    async with stack_over(one, protocol=protocol) as stack, admin(stack) as operator:
        await ask(http, stack)
        dump = await envoy_page(http, stack, "config_dump?resource=dynamic_active_clusters")
        first = next(one for one in dump["configs"] if one["cluster"]["name"] == name)
        opened = await stat(http, stack, f"cluster.{name}.upstream_cx_total")
        assert opened
        for wanted in range(5, 10):
            result = await operator.SetBreaker(
                admin_pb2.SetBreakerRequest(
                    pool="llm", max_requests=wanted, min_retries=wanted, options=OPTIONS
                )
            )
            assert list(result.channels) == ["RTDS"]
            assert limit((await clusters(http, stack))[name], "max_requests") == wanted
        assert await stat(http, stack, f"cluster.{name}.upstream_cx_total") == opened
        assert await stat(http, stack, f"cluster.{name}.upstream_cx_destroy") == 0
        result = await operator.SetSlowStart(
            admin_pb2.SetSlowStartRequest(pool="llm", aggression=2.5, options=OPTIONS)
        )
        assert set(result.channels) == {"RTDS", "POOL"}
        runtime = await envoy_page(http, stack, "runtime?format=json")
        assert runtime["entries"]["tidegate.slow_start.llm.aggression"]["final_value"] == "2.5"
        await operator.SetBreaker(
            admin_pb2.SetBreakerRequest(
                pool="llm",
                max_requests=1,
                max_pending=1,
                min_retries=0,
                retry_budget_percent=0,
                options=OPTIONS,
            )
        )
        refused = await at_once(http, stack, one, 6, lambda _, done: len(done) >= 4)
        assert refused == {200, 503}
        assert one.most_at_once == 1
        await operator.SetBreaker(
            admin_pb2.SetBreakerRequest(
                pool="llm", max_requests=100, max_pending=100, options=OPTIONS
            )
        )
        assert await at_once(http, stack, one, 6, lambda one, _: one.at_once == 6) == {200}
        # Not one cluster update: what Envoy holds is what it held, connections included.
        dump = await envoy_page(http, stack, "config_dump?resource=dynamic_active_clusters")
        seen = next(one for one in dump["configs"] if one["cluster"]["name"] == name)
        assert seen == first


async def test_a_cookie_pins_a_variant(http, stack, replicas):
    """A cookie selects its variant for any weights; an unknown value uses the weights."""

    def pinned(pool):
        pool["variants"][1]["match"] = {"cookies": {"ab": "b"}}

    await edited(stack, pinned)
    canary = replicas[2].address
    for cookie, is_canary in (("ab=b", True), ("id=1; ab=b; x=y", True), ("ab=bb", False)):
        status, served = await ask(http, stack, cookie=cookie)
        assert (status, served == canary) == (200, is_canary)


async def test_basis_points_are_kept(http, stack):
    """A canary of 0.25 % reaches Envoy as 25 of 10,000."""

    def split(pool):
        pool["variants"][0]["weight"], pool["variants"][1]["weight"] = 9975, 25

    assert (await edited(stack, split)).channels
    runtime = await envoy_page(http, stack, "runtime?format=json")
    weights = {
        key.rpartition("/")[0].rpartition("/")[2]: value["final_value"]
        for key, value in runtime["entries"].items()
        if key.startswith("tidegate.weight.")
    }
    assert weights == {"stable": "9975", "canary": "25"}


async def test_a_shadow_gets_copies_that_no_ledger_knows(http, stack, replicas):
    """Each request is mirrored to the canary; the picker sees only the original."""

    def shadowed(pool):
        pool["shadow"] = {"variant": "canary", "percent": 100}

    await edited(stack)
    result = await edited(stack, shadowed)
    assert list(result.channels) == ["RDS"]
    picks = "tidegate_picker_picks_total"
    before = await metric(http, stack.picker_metrics, picks, pool="llm")
    answers = [await ask(http, stack) for _ in range(20)]
    assert {status for status, _ in answers} == {200}
    canary = replicas[2]
    assert canary.address not in {served for _, served in answers}

    async def copied() -> bool:
        return len(canary.asked) == 20

    assert await eventually(copied)
    assert all("-shadow" in one["Host"] for one in canary.asked)
    assert await metric(http, stack.picker_metrics, picks, pool="llm") - before == 20
    assert sum(len(replica.asked) for replica in replicas[:2]) == 20

    async def idle() -> bool:
        return await metric(http, stack.picker_metrics, "tidegate_picker_in_flight") == 0

    assert await eventually(idle)


async def test_the_brake_refuses_its_share(http, stack, replicas):
    """Shedding takes effect over EDS before a replica is selected, and ends as fast."""
    await edited(stack)
    async with admin(stack) as operator:

        async def brake(percent: float) -> None:
            result = await operator.SetDropOverload(
                admin_pb2.SetDropOverloadRequest(pool="llm", percent=percent, options=OPTIONS)
            )
            assert list(result.channels) == ["EDS"]

        await brake(40)
        statuses = [(await ask(http, stack))[0] for _ in range(300)]
        refused = statuses.count(503)
        assert statuses.count(200) == 300 - refused == sum(len(one.asked) for one in replicas)
        assert abs(refused / 300 - 0.4) <= Z * math.sqrt(0.4 * 0.6 / 300)
        await brake(0)
    assert {(await ask(http, stack))[0] for _ in range(30)} == {200}


async def test_zones_in_order_and_failover(http, stack, replicas):
    """Without a picker, Envoy uses the first zone until no replica there is healthy."""
    first, second = replicas[0], replicas[1]

    def zoned(pool, *, draining=False):
        pool["zones"] = ["near", "far"]
        pool["endpoints"][0].update(zone="far")
        pool["endpoints"][1].update(zone="near", draining=draining)

    await edited(stack, zoned)
    hosts = (await clusters(http, stack))["llm/stable/http"]["host_statuses"]
    assert sorted((one["locality"]["zone"], one.get("priority", 0)) for one in hosts) == [
        ("far", 1),
        ("near", 0),
    ]
    await stack.kill_picker()
    try:
        assert {(await ask(http, stack))[1] for _ in range(20)} == {second.address}
        fleet = stack.read_fleet()
        zoned(fleet["pools"][0], draining=True)
        async with admin(stack) as operator:
            request = admin_pb2.ApplyRequest(fleet=orjson.dumps(fleet).decode(), options=OPTIONS)
            await operator.Apply(request)
        assert {(await ask(http, stack))[1] for _ in range(20)} == {first.address}
    finally:
        await stack.start_picker()


async def test_picks_stay_in_the_picker_s_zone_for_the_price_of_a_hop(http, monkeypatch):
    """They leave it with its last replica; without a price, round trips are measured."""
    with_zone = commands.picker
    monkeypatch.setattr(commands, "picker", lambda *each: (*with_zone(*each), "--zone", "near"))
    near, far = Replica("near"), Replica("far")

    def zoned(pool, hop="60s", *, draining=False):
        pool["routing"].update(prefer_zone=True, zone_hop=hop)
        pool["endpoints"][0].update(zone="near", draining=draining)
        pool["endpoints"][1].update(zone="far")

    async with stack_over(near, far) as stack:
        await edited(stack, zoned)
        assert {(await ask(http, stack))[1] for _ in range(12)} == {near.address}
        await edited(stack, partial(zoned, draining=True))
        assert (await ask(http, stack))[1] == far.address
        await edited(stack, partial(zoned, hop="0s"))

        async def measured() -> bool:
            hops = (await picker_state(http, stack))["router"]["hops"]
            return hops["zone"] == "near" and hops["measured_s"].keys() == {"far"}

        assert await eventually(measured)


async def test_a_path_that_is_not_ready_takes_replicas_out(http, stack):
    """Active health checks use the fleet's path, and Envoy reports their results."""

    async def failed() -> set[bool]:
        hosts = (await clusters(http, stack))["llm/stable/http"]["host_statuses"]
        return {one["health_status"].get("failed_active_health_check", False) for one in hosts}

    await edited(stack, lambda pool: pool["health"].update(path="/nothing/here"))
    assert await failed() == {True}
    await edited(stack, lambda pool: pool["health"].update(path="/any/ready"))
    assert await failed() == {False}


async def test_a_replica_that_fails_in_a_row_is_counted_and_not_ejected(http, stack, replicas):
    """Clients can make a replica answer 503, so Envoy's outlier detection enforces nothing."""
    await edited(stack, lambda pool: pool.update(outlier={"consecutive_failures": 2}))
    replicas[0].status = 503
    name = "cluster.llm/stable/http.outlier_detection."

    async def detected() -> bool:
        assert (await ask(http, stack))[0] == 200
        url = f"http://{stack.envoy_admin}/stats?filter=outlier_detection&format=json"
        async with http.get(url) as answer:
            found = {each["name"]: each["value"] for each in (await answer.json())["stats"]}
        assert found[name + "ejections_enforced_total"] == 0
        return found[name + "ejections_detected_consecutive_gateway_failure"] > 0

    assert await eventually(detected)
    hosts = (await clusters(http, stack))["llm/stable/http"]["host_statuses"]
    assert not any(one["health_status"].get("failed_outlier_check") for one in hosts)


async def test_replicas_without_http_are_checked_over_grpc(lend_once, http):
    """Real Triton serves gRPC health checks; a replica that is not serving is unhealthy."""
    stack = await lend_once(models=("vision",))

    def without_http(pool, *, absent=""):
        for endpoint in pool["endpoints"]:
            del endpoint["http"]
        if absent:
            pool["endpoints"].append({"id": "absent", "grpc": absent})

    await edited(stack, lambda pool: without_http(pool, absent="127.0.0.1:1"))
    hosts = (await clusters(http, stack))["vision/stable/grpc"]["host_statuses"]
    failed = {
        one["address"]["socket_address"]["port_value"]
        for one in hosts
        if one["health_status"].get("failed_active_health_check")
    }
    assert len(hosts) == len(stack.replicas) + 1
    assert failed == {1}
    async with triton_grpc.InferenceServerClient(stack.grpc_address) as client:
        for _ in range(6):
            assert await client.infer("vision", vision_inputs())


async def test_connections_to_one_replica_are_limited(http, stack, replicas):
    """Requests above the limit wait for a connection instead of opening one."""

    def limited(pool):
        pool["endpoints"] = pool["endpoints"][:1] + pool["endpoints"][2:]
        pool["circuit_breaker"] = {"max_connections_per_endpoint": 1}

    await edited(stack, limited)
    one, name = replicas[0], "cluster.llm/stable/http.upstream_rq_pending_active"

    async def waiting() -> bool:
        return one.at_once + await stat(http, stack, name) == 12

    one.gate = asyncio.Event()
    asked = [asyncio.create_task(ask(http, stack)) for _ in range(12)]
    assert await eventually(waiting)
    # Each of Envoy's two workers may open one connection in any case.
    assert one.most_at_once <= 2
    one.gate.set()
    assert {status for status, _ in await asyncio.gather(*asked)} == {200}
    await edited(
        stack, lambda pool: pool.update(endpoints=pool["endpoints"][:1] + pool["endpoints"][2:])
    )
    assert await at_once(http, stack, one, 12, lambda one, _: one.at_once == 12) == {200}


async def test_the_buffer_of_a_connection_is_the_fleets(http, stack):
    """A change of the buffer limit updates the listener in place."""
    result = await edited(stack, whole=lambda fleet: fleet["listener"].update(buffer_bytes=131_072))
    assert "LDS" in result.channels
    dump = await envoy_page(http, stack, "config_dump?resource=dynamic_listeners")
    (config,) = dump["configs"]
    listener = config["active_state"]["listener"]
    assert listener["per_connection_buffer_limit_bytes"] == 131_072
    assert (await ask(http, stack))[0] == 200


async def test_a_long_answer_is_cut_only_by_silence(http, stack, replicas):
    """The duration of an answer is unlimited; a stream without data for `timeouts.idle` ends."""
    await edited(stack, lambda pool: pool.update(timeouts={"idle": "2s"}))
    for replica in replicas:
        replica.gaps_s = (0.3,) * 8
    body = {"text_input": "hello", "max_tokens": 1}
    async with http.post(stack.http_url + GENERATE, json=body) as answer:
        assert (await answer.text()).endswith("last")
    cut = asyncio.Event()
    for replica in replicas:
        replica.gaps_s, replica.ends = (0.0,), cut
    with pytest.raises(aiohttp.ClientError):
        async with http.post(stack.http_url + GENERATE, json=body) as answer:
            await answer.text()
    cut.set()
    for replica in replicas:
        replica.gaps_s, replica.ends = (2.8,), None
    await edited(stack, lambda pool: pool.update(timeouts={"idle": "30s"}))
    async with http.post(stack.http_url + GENERATE, json=body) as answer:
        assert (await answer.text()).endswith("last")
