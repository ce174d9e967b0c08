"""Control servers on a real etcd: members lost, history compacted, the leader killed.

Run by ``make test-kubernetes ARGS="-k shared_store"``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from contextlib import closing

import grpc
import pytest
from aiohttp import ClientError, ClientSession

from kubernetes.etcd import EtcdCluster
from support.control_process import WAIT_S, piped
from support.etcd_port import PREFIX, used
from support.fleets import fleet, pool
from support.model_servers import ModelServer
from support.traffic import eventually
from tidegate.stack.envoy import envoy_binary, envoy_command, envoy_environment, render_bootstrap
from tidegate.stack.processes import spawning
from tidegate.stack.processes.ports import HeldPorts
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.admin.v1 import admin_pb2_grpc
from tidegate_common.children import module_command
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.store import RevisionStore
from xds_server.fleet.stored.epochs import MAX_RECORDS
from xds_server.fleet.stored.shared import SharedHistory
from xds_server.leading.etcd import Etcd
from xds_server.leading.standing import EXIT_LOST

pytestmark = pytest.mark.timeout(300)
FORCED = api.ChangeOptions(force=True)


@pytest.fixture
async def cluster(tmp_path):
    """Start three members."""
    async with EtcdCluster(tmp_path, 3) as running:
        yield running


class Servers:
    """Two control servers, and an Envoy that knows both."""

    def __init__(self, folder, store: str, ports: HeldPorts, wanted: Fleet) -> None:
        self.folder, self.store = folder, store
        self.file = folder / "fleet.yaml"
        self.file.write_text(wanted.model_dump_json())
        self.ads = [ports.address() for _ in range(2)]
        self.admins = [ports.address() for _ in range(2)]
        self.metrics = [ports.address() for _ in range(2)]
        self.envoy_admin = ports.address()
        self.processes: list = [None, None]
        self.events: list[asyncio.Queue] = [asyncio.Queue(), asyncio.Queue()]
        self._reading: list[asyncio.Task] = []

    async def start(self, number: int) -> None:
        """Start a control server."""
        words = (
            *("--fleet", str(self.file), "--store", self.store, "--log-format", "json"),
            *("--ads", self.ads[number], "--admin", self.admins[number]),
            *("--metrics", self.metrics[number]),
        )
        process, lines = await piped(module_command("xds_server", *words))
        self.processes[number] = process
        events = self.events[number] = asyncio.Queue()

        async def read() -> None:
            async for line in lines:
                with contextlib.suppress(ValueError):
                    events.put_nowait(json.loads(line))
            events.put_nowait({"event": "ended"})

        self._reading.append(asyncio.create_task(read()))

    async def event(self, number: int, name: str) -> dict:
        """Return the next event of this name."""
        async with asyncio.timeout(WAIT_S):
            while (event := await self.events[number].get())["event"] != name:
                assert event["event"] != "ended", name
        return event

    async def ask(self, number: int, call: str, asked):
        """Call a control server as an operator does."""
        async with grpc.aio.insecure_channel(self.admins[number]) as channel:
            return await getattr(admin_pb2_grpc.AdminStub(channel), call)(asked)

    async def drain(self, number: int, endpoint: str) -> int:
        """Drain a replica; return the revision."""
        asked = api.SetDrainingRequest(endpoint=endpoint, draining=True, options=FORCED)
        return (await self.ask(number, "SetDraining", asked)).revision

    def kill(self, number: int) -> None:
        """Kill a control server."""
        os.kill(self.processes[number].pid, signal.SIGKILL)

    async def envoy(self) -> spawning.Process:
        """Start the Envoy."""
        path = self.folder / "envoy.yaml"
        path.write_text(
            render_bootstrap("envoy-1", "test", ",".join(self.ads), self.envoy_admin, "delta")
        )
        program = spawning.Program(envoy_command(envoy_binary(), path, 1), envoy_environment())
        with (self.folder / "envoy.log").open("wb") as log:
            self.processes.append(await spawning.spawn(program, log))
        return self.processes[-1]

    async def hosts(self) -> dict[str, str]:
        """Return what the Envoy knows of the replicas, by address; none while it starts."""
        url = f"http://{self.envoy_admin}/clusters?format=json"
        try:
            async with ClientSession() as http, http.get(url) as answer:
                found = json.loads(await answer.text())
        except ClientError:
            return {}
        return {
            f"{one['name']} {each['address']['socket_address']['port_value']}": each[
                "health_status"
            ].get("eds_health_status", "")
            for one in found.get("cluster_statuses", ())
            if one["name"].startswith("llm/")
            for each in one.get("host_statuses", ())
        }

    async def draining(self) -> int:
        """Return how many replicas the Envoy knows to drain."""
        return sum(each == "DRAINING" for each in (await self.hosts()).values())

    async def end(self) -> None:
        """Kill all."""
        for each in self.processes:
            if each is not None and each.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
                await each.wait()
        await asyncio.gather(*self._reading)


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
        made = Servers(tmp_path, cluster.store, ports, wanted)
        try:
            await made.start(0)
            await made.event(0, "control_server_ready")
            await made.start(1)
            await made.event(1, "control_server_follows")
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
    await servers.event(0, "revision_stored")  # the weights are changed, and nobody was told
    servers.kill(0)
    with contextlib.suppress(grpc.aio.AioRpcError):
        await starting
    await servers.event(1, "control_server_ready")
    acted = api.ActOnCanaryRequest(pool="llm", action="promote", options=FORCED)
    await servers.ask(1, "ActOnCanary", acted)
    (found,) = (await servers.ask(1, "GetCanaries", api.GetCanariesRequest())).rollouts
    assert (found.phase, found.transitions) == ("promoted", 2)
    assert (await servers.drain(1, "r1")) == 4
