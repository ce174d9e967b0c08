"""The source against a real API server: it ends equal to what the server says, whatever happens."""

from __future__ import annotations

import contextlib
import itertools
import random
from typing import TYPE_CHECKING

import pytest

from kubernetes.cluster import ZONE, ApiError
from kubernetes.watched import Watched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kubernetes.cluster import Cluster

pytestmark = pytest.mark.timeout(300)
_numbers = itertools.count(1)


@pytest.fixture
async def watched(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Watched]:
    """A namespace of its own."""
    made = Watched(cluster, f"infer-{next(_numbers)}", tmp_path)
    yield made
    await made.stop()
    if not cluster.api.running:
        await cluster.restart()


async def test_replicas_are_the_deployment_s_pods(watched: Watched) -> None:
    """By their names, with addresses, zone of the node, variant and device of the Service."""
    await watched.create(2)
    watched.start()
    await watched.settles(2)
    assert watched.newest is not None
    for found in watched.newest.endpoints:
        assert found.identity.startswith("triton-")
        assert found.http is not None
        assert found.http.endswith(":8000")
        assert found.grpc == found.http.replace(":8000", ":8001")
        assert (found.variant, found.zone, found.device) == ("stable", ZONE, "a100")
    assert watched.troubles == []


async def test_scaling_up_and_down(watched: Watched) -> None:
    """A pod that is deleted terminates before it is gone, and serves meanwhile."""
    await watched.create(1)
    watched.start()
    for replicas in (4, 2, 0, 3):
        await watched.cluster.scale(watched.namespace, "triton", replicas)
        await watched.settles(replicas)
    ended = [each for seen in watched.observations for each in seen.endpoints if each.terminating]
    assert ended
    assert any(each.serving for each in ended)
    assert watched.troubles == []


async def test_a_rollout_replaces_all(watched: Watched) -> None:
    """New pods have new names; at no time is nothing found."""
    await watched.create(3)
    watched.start()
    await watched.settles(3)
    before = {each.identity for each in watched.newest.endpoints}
    begun = len(watched.observations)
    path = f"/apis/apps/v1/namespaces/{watched.namespace}/deployments/triton"
    patch = {"spec": {"template": {"metadata": {"annotations": {"rollout": "1"}}}}}
    await watched.cluster.ask("PATCH", path, patch)
    await watched.until(lambda: not before & {each.identity for each in watched.newest.endpoints})
    await watched.settles(3)
    assert all(seen.endpoints for seen in watched.observations[begun:])


async def test_a_pod_that_is_not_ready_does_not_serve(watched: Watched) -> None:
    """And serves again once it is."""
    await watched.create(2)
    watched.start()
    await watched.settles(2)
    name = watched.newest.endpoints[0].identity
    watched.cluster.kubelet.unready.add(name)
    await watched.until(lambda: not watched.newest.endpoints[0].serving)
    assert watched.newest.endpoints[0].identity == name
    assert not watched.newest.endpoints[0].terminating
    watched.cluster.kubelet.unready.discard(name)
    await watched.settles(2)


async def test_a_second_service_of_the_same_pods(watched: Watched) -> None:
    """Both match the selector; each pod stays one endpoint."""
    await watched.create(2)
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "again", "labels": {"app": "triton"}},
        "spec": {
            "selector": {"app": "triton"},
            "ports": [{"name": "http", "port": 80, "targetPort": 8000}],
        },
    }
    await watched.apply(service)
    watched.start()
    await watched.settles(2)
    assert watched.newest.endpoints[0].variant == "stable"


async def test_a_service_without_a_selector(watched: Watched) -> None:
    """Slices made by hand name what is outside of the cluster; a list of several pages."""
    await watched.create(0)
    for number in range(5):
        made = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"outside-{number}",
                "labels": {"kubernetes.io/service-name": "outside", "app": "triton"},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8000}, {"name": "grpc", "port": 8001}],
            "endpoints": [{"addresses": [f"192.0.2.{number + 1}"]}],
        }
        await watched.apply(made)
    watched.start()
    await watched.settles(5)
    assert watched.newest.endpoints[0].identity == "192.0.2.1:8001"


async def test_the_api_server_is_killed(watched: Watched) -> None:
    """While it is away what was found stays; changes of the meantime are seen afterwards."""
    await watched.create(2)
    watched.start()
    await watched.settles(2)
    seen = len(watched.observations)
    watched.cluster.api.stop()
    await watched.until(lambda: watched.troubles and "cannot be asked" in watched.troubles[-1])
    assert len(watched.observations) == seen
    await watched.cluster.restart()
    await watched.cluster.scale(watched.namespace, "triton", 3)
    await watched.settles(3)
    await watched.until(lambda: watched.troubles[-1] == "")


async def test_the_store_is_compacted_meanwhile(watched: Watched) -> None:
    """The version that the watch would go on from is gone: a new list, and nothing is lost."""
    await watched.create(2)
    watched.start()
    await watched.settles(2)
    watched.cluster.api.stop()
    await watched.cluster.restart()
    await watched.cluster.scale(watched.namespace, "triton", 1)
    await watched.cluster.compact()
    await watched.cluster.restart()
    await watched.settles(1)


async def test_rights_that_are_missing(watched: Watched) -> None:
    """Said in one sentence, with the verb, the namespace and the account; used when granted."""
    await watched.create(1, rights=False)
    watched.start()
    await watched.until(lambda: watched.troubles)
    (sentence,) = watched.troubles
    assert sentence == (
        f"{watched.cluster.url} forbids to system:serviceaccount:{watched.namespace}:"
        "tidegate-control to list endpointslices.discovery.k8s.io in the namespace "
        f"'{watched.namespace}': bind there a Role with apiGroups [discovery.k8s.io], resources "
        "[endpointslices] and verbs [list, watch]"
    )
    await watched.grant()
    await watched.settles(1)
    assert watched.troubles[-1] == ""


async def test_a_token_is_rotated(watched: Watched) -> None:
    """The old one ends; the new one in the same file is used without a restart."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bound"}}
    await watched.create(1)
    await watched.apply(secret)
    watched.token_file.write_text(await watched.token("bound"))
    watched.start()
    await watched.settles(1)
    await watched.cluster.delete(secret)
    await watched.cluster.restart()  # which ends the watch, and forgets that the token was good
    await watched.until(lambda: any("does not accept" in each for each in watched.troubles))
    watched.token_file.write_text(await watched.token())
    await watched.cluster.scale(watched.namespace, "triton", 2)
    await watched.settles(2)
    await watched.until(lambda: watched.troubles[-1] == "")


async def test_churn_ends_equal(watched: Watched) -> None:
    """Sixty random changes, with kills and compactions among them."""
    chance = random.Random(17)
    await watched.create(2)
    watched.start()
    replicas = 2
    for _ in range(60):
        draw = chance.random()
        if draw < 0.6:
            replicas = chance.randrange(1, 8)
            await watched.cluster.scale(watched.namespace, "triton", replicas)
        elif draw < 0.9:
            pods = await watched.cluster.ask("GET", f"/api/v1/namespaces/{watched.namespace}/pods")
            if pods["items"]:
                name = chance.choice(pods["items"])["metadata"]["name"]
                path = f"/api/v1/namespaces/{watched.namespace}/pods/{name}"
                with contextlib.suppress(ApiError):  # it ended by itself
                    await watched.cluster.ask("DELETE", path)
        elif draw < 0.95:
            await watched.cluster.compact()
        else:
            await watched.cluster.restart()
    await watched.cluster.restart()
    # The controllers may wait for minutes for events that they lost; started anew they do not.
    watched.cluster.controllers.stop()
    watched.cluster.controllers.start()
    await watched.settles(replicas)
