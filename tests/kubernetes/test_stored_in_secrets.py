"""Control servers that share a real API server: leaders killed, the server away, parts lost.

Run by ``make test-kubernetes ARGS="-k stored_in_secrets"``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from contextlib import closing
from functools import partial

import grpc
import pytest

from kubernetes.chart import objects, render
from kubernetes.cluster import ADMIN
from kubernetes.servers import Servers
from support.fleets import fleet
from support.shared_keys import shared
from support.traffic import eventually
from tidegate.stack.processes.ports import HeldPorts
from xds_server.applications.discovery.kubernetes.access import AccessFiles
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.model.kubernetes import KubernetesApi
from xds_server.fleet.revision import FleetState, Revision
from xds_server.fleet.store import RevisionStore
from xds_server.fleet.stored.shared import SharedFault, SharedHistory
from xds_server.leading.kubernetes import STORE, Kubernetes
from xds_server.leading.standing import EXIT_LOST, MAX_BYTES

pytestmark = pytest.mark.timeout(300)
SPACE = "shared-store"
SECRETS = f"/api/v1/namespaces/{SPACE}/secrets"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SPACE}/leases/{{}}"
VALUES = "control.replicas=2"
STORES = ("all", "parts", "lost", "large")


def store_of(request: pytest.FixtureRequest) -> str:
    """Return the name of a test's store of servers."""
    return str(request.node.name.replace("_", "-"))


@pytest.fixture
async def account(cluster, tmp_path, request):
    """Return a kubeconfig of an account that has the rights that the chart gives, and no others.

    Where they are for the chart's store alone, they are for those of this test.
    """
    rbac = "rbac.authorization.k8s.io"
    made = {"name": "control", "namespace": SPACE}
    subject = {"kind": "ServiceAccount", **made}
    (role,) = (
        each
        for each in objects(await asyncio.to_thread(render, "--set", VALUES))
        if (each["kind"], each["metadata"]["name"]) == ("Role", "tidegate-control")
    )
    for rule in role["rules"]:
        if rule.get("resourceNames") == ["tidegate-control"]:
            rule["resourceNames"] = [*STORES, store_of(request)]
    for each in (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": made},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": made, "rules": role["rules"]},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": made,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "control"},
            "subjects": [subject],
        },
    ):
        await cluster.apply(each)
    text = (cluster.folder / "kubeconfig").read_text()
    path = tmp_path / "kubeconfig"
    path.write_text(text.replace(ADMIN, await cluster.token(SPACE, "control")))
    return path


def opened(kubeconfig, name: str) -> Kubernetes:
    """Return a store."""
    return Kubernetes(SPACE, name, AccessFiles(KubernetesApi(kubeconfig=str(kubeconfig))))


def history(store: Kubernetes, writer: str) -> SharedHistory:
    """Return a history there, of a server that may lead."""
    return SharedHistory(store, "the store", writer, lambda: True, lambda: None, lambda: None)


@pytest.fixture
async def servers(tmp_path, account, request):
    """Start two, on a store named after the test."""
    name = store_of(request)
    store = (f"--store=kubernetes://{SPACE}/{name}", f"--store-kubeconfig={account}")
    with HeldPorts() as ports:
        made = Servers(tmp_path, store, ports, fleet())
        made.name = name
        try:
            await made.begin()
            yield made
        finally:
            await made.end()


async def test_it_does_what_all_stores_do(account) -> None:
    """By the rights of the chart's Role, which are enough."""
    with closing(opened(account, "all")) as store:
        await asyncio.to_thread(shared, store)


async def test_parts_are_immutable_and_a_lease_that_was_deleted_is_lost(cluster, account) -> None:
    """Whoever writes: the API server itself refuses another value."""
    with closing(opened(account, "parts")) as store:
        await asyncio.to_thread(store.write, "record/1/x", b"r")
        name = f"{SECRETS}/parts-record-1-x"
        found = await cluster.ask("GET", name)
        assert found["metadata"]["labels"] == {STORE: "parts"}
        found["data"] = {"value": "AA=="}
        with pytest.raises(Exception, match="immutable"):
            await cluster.ask("PUT", name, found)
        lease = store.grant(15)
        assert await asyncio.to_thread(store.claim, b"me", lease)
        await cluster.ask("DELETE", LEASE.format("parts"))
        assert await asyncio.to_thread(store.keep, lease) <= 0


async def test_a_lost_part_is_named(cluster, account) -> None:
    """Who has the state already goes on, and writes it anew when it leads."""
    with closing(opened(account, "lost")) as store:
        leading = await asyncio.to_thread(RevisionStore, None, shared=history(store, "a"))
        known, late = history(store, "b"), history(store, "late")
        await asyncio.to_thread(leading.put_value, "value", "1")
        await asyncio.to_thread(known.follow)
        listed = await cluster.ask("GET", SECRETS, labelSelector=f"{STORE}=lost")
        (name,) = (
            each["metadata"]["name"]
            for each in listed["items"]
            if each["metadata"]["name"].startswith("lost-image-")
        )
        await cluster.ask("DELETE", f"{SECRETS}/{name}")
        with pytest.raises(SharedFault, match="has lost image/0000000000000000/a-0/0, a part"):
            await asyncio.to_thread(late.follow)
        second = await asyncio.to_thread(RevisionStore, None, shared=known)
        await asyncio.to_thread(late.follow)
        assert second.value("value") == "1"
        assert late.head == known.head


async def test_a_large_fleet_is_stored_in_pieces(cluster, account) -> None:
    """200 pools of 250 replicas: none of its Secrets is near Kubernetes' bound."""
    draws = random.Random(7)
    pools = [
        {
            "name": f"pool-{number}",
            "match": {"models": [f"model-{number}"]},
            "endpoints": [
                {"id": f"p{number}-{draws.randbytes(6).hex()}", "http": f"10.{number}.{at}.1:8000"}
                for at in range(250)
            ],
        }
        for number in range(200)
    ]
    wanted = Fleet.model_validate({"listener": {"address": "127.0.0.1:1"}, "pools": pools})
    state = FleetState(Revision(1, 1, "a", "b", ()), wanted, {}, None)
    with closing(opened(account, "large")) as store:
        first = await asyncio.to_thread(
            partial(RevisionStore, None, max_bytes=MAX_BYTES, shared=history(store, "a"))
        )
        await asyncio.to_thread(first.append, state)
        late = await asyncio.to_thread(
            partial(RevisionStore, None, max_bytes=MAX_BYTES, shared=history(store, "b"))
        )
        assert late.fleet(1) == wanted
    listed = await cluster.ask("GET", SECRETS, labelSelector=f"{STORE}=large")
    sizes = [len(each["data"]["value"]) * 3 // 4 for each in listed["items"]]
    assert max(sizes) <= 2**19 + 2
    print(f"{len(sizes)} Secrets of {sum(sizes)} bytes")  # noqa: T201 - the figure of the report


async def test_a_follower_goes_on_where_a_killed_leader_ended(servers, cluster) -> None:
    """Killed within a change: an Envoy keeps what it has, and gets more."""
    await servers.envoy()

    async def served() -> bool:
        return len(await servers.hosts()) > 0

    assert await eventually(served)
    before = set(await servers.hosts())
    change = asyncio.create_task(servers.drain(0, "r1"))
    await servers.event(0, "revision_stored")
    servers.kill(0)
    with contextlib.suppress(grpc.aio.AioRpcError):
        await change
    assert (await servers.event(1, "control_server_leads"))["epoch"] == 2
    assert (await servers.event(1, "control_server_ready"))["revision"] == 2
    assert set(await servers.hosts()) == before
    assert await servers.drain(1, "r2") == 3

    async def both() -> bool:
        return await servers.draining() >= 2

    assert await eventually(both)
    lease = await cluster.ask("GET", LEASE.format(servers.name))
    assert servers.admins[1] in lease["metadata"]["annotations"]["tidegate.dev/leader"]


async def test_a_leader_ends_before_its_lease_where_the_server_is_away(servers, cluster) -> None:
    """Then a server leads again with what was stored, once it is back."""
    assert await servers.drain(0, "r1") == 2
    cluster.api.stop()
    try:
        await servers.event(0, "lease_lost")
        assert await servers.processes[0].wait() == EXIT_LOST
    finally:
        cluster.api.start()
        await cluster.ready()
    assert (await servers.event(1, "control_server_ready"))["revision"] == 2
    assert await servers.drain(1, "r2") == 3
