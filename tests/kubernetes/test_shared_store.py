"""Control servers on a real etcd: members lost, history compacted, the leader killed.

Run by ``make test-kubernetes ARGS="-k shared_store"``.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from contextlib import closing

import grpc
import pytest

from kubernetes.etcd import EtcdCluster
from kubernetes.servers import FORCED, Servers
from support.etcd_port import PREFIX, used
from support.fleets import fleet, pool
from support.model_servers import ModelServer
from support.traffic import eventually
from tidegate.stack.processes.ports import HeldPorts
from tidegate_api.admin.v1 import admin_pb2 as api
from xds_server.fleet.store import RevisionStore
from xds_server.fleet.stored.epochs import MAX_RECORDS
from xds_server.fleet.stored.shared import SharedHistory
from xds_server.leading.etcd import Etcd
from xds_server.leading.standing import EXIT_LOST

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def cluster(tmp_path):
    """Start three members."""
    async with EtcdCluster(tmp_path, 3) as running:
        yield running


@pytest.fixture
async def replicas():
    """Start three, of which the last is the canary."""
    async with ModelServer("r1") as one, ModelServer("r2") as two, ModelServer("r3") as three:
        yield one, two, three


@pytest.fixture
async def servers(tmp_path, cluster, replicas):
    """Start the first one, which leads, and then the second."""
    stable, canary = {"name": "stable", "weight": 100}, {"name": "canary", "weight": 0}
    endpoints = [each.endpoint for each in replicas]
    endpoints[2]["variant"] = "canary"
    wanted = fleet(pool(variants=[stable, canary], endpoints=endpoints, default=True))
    with HeldPorts() as ports:
        made = Servers(tmp_path, ("--store", cluster.store), ports, wanted)
        try:
            await made.begin()
            yield made
        finally:
            await made.end()


def test_a_real_etcd_answers_as_recorded(cluster) -> None:
    """All calls that the product makes."""
    with closing(Etcd(cluster.clients, PREFIX)) as etcd:
        used(etcd)


async def test_a_follower_reads_a_compacted_history_without_a_member(cluster) -> None:
    """It needs the newest values only, of any member; and so does the next leader."""

    def history(writer: str) -> SharedHistory:
        etcd = Etcd(cluster.clients, "/compacted/")
        return SharedHistory(etcd, "etcd", writer, lambda: True, lambda: None, lambda: None)

    store = await asyncio.to_thread(RevisionStore, None, shared=history("a"))
    late = history("late")
    await asyncio.to_thread(late.follow)
    for number in range(MAX_RECORDS + 5):
        await asyncio.to_thread(store.put_value, "value", str(number))
    await cluster.compact()
    cluster.members[0].stop()
    await asyncio.to_thread(late.follow)
    find = "SELECT value FROM latest WHERE key = 'value'"
    assert late.db.execute(find).fetchone() == (str(number),)
    following = await asyncio.to_thread(RevisionStore, None, shared=late)
    assert following.value("value") == str(number)
    following.close()
    store.close()


async def test_a_follower_goes_on_where_a_killed_leader_ended(servers, cluster) -> None:
    """Killed within a change, with a member of etcd: an Envoy keeps what it has, and gets more."""
    await servers.envoy()

    async def served() -> bool:
        return len(await servers.hosts()) > 0

    assert await eventually(served)
    before = set(await servers.hosts())
    change = asyncio.create_task(servers.drain(0, "r1"))
    await servers.event(0, "revision_stored")
    servers.kill(0)
    cluster.members[1].stop()
    with contextlib.suppress(grpc.aio.AioRpcError):
        await change
    assert set(await servers.hosts()) == before
    assert (await servers.event(1, "control_server_leads"))["epoch"] == 2
    assert (await servers.event(1, "control_server_ready"))["revision"] == 2
    assert set(await servers.hosts()) == before
    assert await servers.drain(1, "r2") == 3

    async def both() -> bool:
        return await servers.draining() >= 2

    assert await eventually(both)


async def test_a_leader_ends_before_its_lease_where_no_member_answers(servers, cluster) -> None:
    """Then a server leads again with what was stored, once they do."""
    assert await servers.drain(0, "r1") == 2
    for each in cluster.members:
        each.stop(signal.SIGKILL)
    await servers.event(0, "lease_lost")
    assert await servers.processes[0].wait() == EXIT_LOST
    for each in cluster.members:
        each.start()
    assert (await servers.event(1, "control_server_ready"))["revision"] == 2
    assert await servers.drain(1, "r2") == 3


async def test_a_follower_ends_a_load_in_whose_middle_the_leader_was_killed(
    servers, replicas
) -> None:
    """One replica had the model, another one's call was open: in the end all have it, once."""
    replicas[1].hold = asyncio.Event()
    options = api.ChangeOptions(wait=False)
    asked = api.LoadModelRequest(pool="llm", model="m", parallel=1, options=options)
    begun = await servers.ask(0, "LoadModel", asked)

    async def calling() -> bool:
        return replicas[1].at_once == 1

    assert await eventually(calling)
    servers.kill(0)
    await servers.event(1, "control_server_ready")
    replicas[1].hold.set()
    await servers.event(1, "model_operation_ended")
    found = await servers.ask(1, "GetOperations", api.GetOperationsRequest())
    assert [(each.number, each.phase) for each in found.operations] == [(begun.number, "done")]
    assert [each.ready for each in replicas] == [{"m": ["1"]}] * 3
    assert (replicas[0].calls, replicas[2].calls) == (["load"], ["load"])


async def test_a_follower_has_the_rollout_in_whose_middle_the_leader_was_killed(servers) -> None:
    """With its step and its weights; an operator promotes it there."""
    asked = api.StartCanaryRequest(pool="llm", variant="canary", options=FORCED)
    starting = asyncio.create_task(servers.ask(0, "StartCanary", asked))
    await servers.event(0, "revision_stored")  # the weights are changed, no client has them
    servers.kill(0)
    with contextlib.suppress(grpc.aio.AioRpcError):
        await starting
    await servers.event(1, "control_server_ready")
    acted = api.ActOnCanaryRequest(pool="llm", action="promote", options=FORCED)
    await servers.ask(1, "ActOnCanary", acted)
    (found,) = (await servers.ask(1, "GetCanaries", api.GetCanariesRequest())).rollouts
    assert (found.phase, found.transitions) == ("promoted", 2)
    assert (await servers.drain(1, "r1")) == 4
