"""An Envoy with listener and routes of its own, fed with clusters by the control server.

``deploy/envoy/clusters-only.yaml`` and its fleet run as they are, but for ports and for the time
that the picker may take on a busy machine.
"""

from __future__ import annotations

import asyncio
import copy
import uuid
from contextlib import AsyncExitStack

import pytest
import yaml

from support.existing_envoy import (
    FedEnvoy,
    edited,
    example,
    ext_proc,
    log_sinks,
    routes,
    with_ports,
)
from support.in_process_stack import Flow
from support.replicas import PATIENT, Replica
from support.traffic import eventually
from tidegate.stack.assets import ExtraMissingError
from tidegate.stack.envoy import envoy_binary
from tidegate_api.admin.v1 import admin_pb2 as api
from xds_server.fleet.view import LOG_SLOTS

try:
    envoy_binary()
except ExtraMissingError as missing:
    pytest.skip(str(missing), allow_module_level=True)

GENERATE = "/v2/models/toy-llm/generate"
CONFIG = example("clusters-only.yaml").replace("message_timeout: 1s", f"message_timeout: {PATIENT}")
FLEET = example("clusters-only-fleet.yaml")
WAIT = api.ChangeOptions(author="test", wait=True, timeout_seconds=60)
SPOOF = {"x-tidegate-cluster": "tidegate-picker", "x-tidegate-variant": "canary"}


@pytest.fixture
async def replicas():
    """Two stable replicas and a canary."""
    async with AsyncExitStack() as exit_:
        yield [await exit_.enter_async_context(Replica(f"r{n}").serve()) for n in (1, 2, 3)]


def fed(replicas, config=CONFIG):
    """Return an Envoy over replicas with its control server."""
    return FedEnvoy(config, [each.address for each in replicas], fleet=FLEET)


async def share(envoy, replica, requests=200):
    """Return the share of a replica in requests of sessions of their own."""
    before = len(replica.asked)
    for first in range(0, requests, 5):
        answers = await asyncio.gather(
            *(
                envoy.post(GENERATE, {"text_input": f"{n}"}, {"x-session-id": f"s{n}", **SPOOF})
                for n in range(first, first + 5)
            )
        )
        assert {status for status, _ in answers} == {200}
    return (len(replica.asked) - before) / requests


def fleet_of(envoy):
    """Return the fleet that the control server has begun with."""
    return yaml.safe_load(with_ports(FLEET, envoy.places))


async def settled(envoy):
    """Return whether all clients hold what is published."""
    status = await envoy.status()
    states = {each.state for client in status.clients for each in client.types}
    return len(status.clients) == 2 and states <= {"SYNCED", "NOT_SENT"} and status.settled


async def test_a_fleet_changes_under_load(replicas):
    """Replicas, variants, drains and weights, and a control server that dies: 0 failed requests."""
    async with AsyncExitStack() as exit_:
        envoy = await exit_.enter_async_context(fed(replicas))
        fourth, fifth = [
            await exit_.enter_async_context(Replica(name, name).serve()) for name in ("r4", "next")
        ]
        assert await eventually(lambda: settled(envoy))
        flow = await exit_.enter_async_context(Flow(envoy.address, rate=60))
        fleet = fleet_of(envoy)
        (pool,) = fleet["pools"]

        async def apply():
            result = await envoy.stub.Apply(
                api.ApplyRequest(fleet=yaml.safe_dump(fleet), options=WAIT)
            )
            assert result.outcome == "done"
            assert {each.state for each in result.problems} <= {"STALLED"}, result.problems
            assert await eventually(lambda: settled(envoy))
            assert not {"LDS", "RDS", "ECDS"} & set(result.channels)

        pool["endpoints"].append({"id": "r4", "http": fourth.address})
        await apply()
        assert await eventually(lambda: asked(fourth))

        result = await envoy.stub.SetDraining(
            api.SetDrainingRequest(endpoint="r1", draining=True, options=WAIT)
        )
        assert result.outcome == "done"
        drained = len(replicas[0].asked)
        answered = flow.answered
        assert await eventually(lambda: more(flow, answered + 100))
        assert len(replicas[0].asked) == drained

        await envoy.kill_control()
        answered = flow.answered
        assert await eventually(lambda: more(flow, answered + 100))
        await envoy.start_control()
        assert await eventually(lambda: settled(envoy))

        # A variant that the routes do not name, and that replaces another, while r1 is drained.
        del pool["endpoints"][0]
        pool["variants"] = [{"name": "stable", "weight": 50}, {"name": "next", "weight": 50}]
        pool["endpoints"][1] = {"id": "r5", "http": fifth.address, "variant": "next"}
        await apply()
        assert await eventually(lambda: asked(fifth))
        old = len(replicas[2].asked)

        result = await envoy.stub.SetWeights(
            api.SetWeightsRequest(pool="llm", weights={"stable": 0, "next": 100}, options=WAIT)
        )
        assert result.outcome == "done"
        stable = len(replicas[1].asked) + len(fourth.asked)
        answered = flow.answered
        assert await eventually(lambda: more(flow, answered + 100))
        assert len(replicas[1].asked) + len(fourth.asked) - stable <= flow.connections
        assert len(replicas[2].asked) == old
        assert not flow.wrong
        assert await envoy.counted("tidegate_picker_passes_total") == 0
        status = await envoy.status()
        kinds = {each.kind: {one.type for one in each.types} for each in status.clients}
        assert kinds["envoy"] == {"CDS", "EDS", "RTDS"}
        assert not status.refused


async def asked(replica):
    """Return whether a replica was asked."""
    return bool(replica.asked)


async def more(flow, number):
    """Return whether so many requests were answered."""
    return flow.answered >= number


async def test_the_picker_draws_the_variant(replicas):
    """V9: 70 of 100 sessions; clients' control headers change nothing."""
    async with fed(replicas) as envoy:
        weights = api.SetWeightsRequest(
            pool="llm", weights={"stable": 30, "canary": 70}, options=WAIT
        )
        assert (await envoy.stub.SetWeights(weights)).outcome == "done"
        assert await share(envoy, replicas[2]) == pytest.approx(0.7, abs=0.146)


async def test_the_routes_draw_the_variant(replicas):
    """V9: weights of the operator's routes; the picker is told the cluster, and stays within it."""

    def change(document):
        settings = ext_proc(document)
        settings["request_attributes"] = ["xds.cluster_name"]
        del settings["route_cache_action"]
        split = [
            {"name": f"llm/{name}/http", "weight": n}
            for name, n in (("stable", 30), ("canary", 70))
        ]
        routes(document)[:] = [
            {
                "match": {"prefix": "/"},
                "route": {"weighted_clusters": {"clusters": split}, "timeout": "600s"},
            }
        ]

    async with fed(replicas, edited(CONFIG, change)) as envoy:
        before = await envoy.picks()
        assert await share(envoy, replicas[2]) == pytest.approx(0.7, abs=0.146)
        assert await envoy.picks() - before == 200
        assert await envoy.counted("tidegate_picker_served_elsewhere_total") == 0


async def test_an_envoy_that_asks_for_listeners(replicas):
    """It starts with its own, keeps its clusters, and reads why in its log and in the status."""

    def change(document):
        document["dynamic_resources"]["lds_config"] = {
            "ads": {},
            "resource_api_version": "V3",
            "initial_fetch_timeout": "1s",
        }

    async with fed(replicas, edited(CONFIG, change)) as envoy:
        assert await eventually(lambda: settled(envoy))
        (refused,) = (await envoy.status()).refused
        assert (refused.node, refused.count) == ("envoy-1", 2)
        assert "LDS is not served: this control server serves clusters only" in refused.reason
        log = (envoy.run.logs / "envoy.log").read_text()
        assert refused.reason in log
        drain = api.SetDrainingRequest(endpoint="r1", draining=True, options=WAIT)
        assert (await envoy.stub.SetDraining(drain)).outcome == "done"


async def test_without_a_picker(replicas):
    """The last route balances over the stable variant; a picker that comes back is asked again."""
    async with fed(replicas) as envoy:

        async def both_serve():  # before its first health check a host is not balanced to
            await envoy.post(GENERATE, {"text_input": uuid.uuid4().hex})
            return all(each.asked for each in replicas[:2])

        assert await eventually(both_serve)
        await envoy.kill_picker()
        canary = len(replicas[2].asked)
        for _ in range(12):
            assert (await envoy.post(GENERATE, {"text_input": "x"}, SPOOF))[0] == 200
        assert len(replicas[2].asked) == canary
        await envoy.start_picker()

        async def picked():
            before = await envoy.picks()
            return (await envoy.post(GENERATE, {"text_input": "x"}))[0] == 200 and (
                await envoy.picks() > before
            )

        assert await eventually(picked)


def slots(document):
    """Change the only log sink into one per slot, as for several pickers."""
    (sink,) = log_sinks(document)
    sinks = [copy.deepcopy(sink) for _ in range(LOG_SLOTS)]
    for slot, each in enumerate(sinks):
        exact = {"string_match": {"exact": str(slot)}}
        matcher = {"filter": "tidegate", "path": [{"key": "slot"}], "value": exact}
        each["filter"]["metadata_filter"]["matcher"] = matcher
        target = {"cluster_name": f"tidegate-picker-log/{slot}", "authority": "tidegate-picker"}
        each["typed_config"]["common_config"]["grpc_service"]["envoy_grpc"] = target
    log_sinks(document)[:] = sinks


@pytest.mark.parametrize("config", [CONFIG, edited(CONFIG, slots)], ids=["one-picker", "several"])
async def test_the_access_log_reaches_the_picker(config, replicas):
    """Over the cluster of all pickers, or of the slot of one; it learns how requests ended."""
    async with fed(replicas, config) as envoy:
        for number in range(6):
            assert (await envoy.post(GENERATE, {"text_input": f"{number}"}))[0] == 200

        async def seen():
            return (await envoy.state())["feedback"]["entries"].get("good", 0) >= 6

        assert await eventually(seen)
