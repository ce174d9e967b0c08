"""Withdrawn clusters, kept for clients that reconnect with routes to them."""

from __future__ import annotations

import pytest

from tidegate_api.names import CLUSTER_TYPE, ENDPOINT_TYPE, ROUTE_TYPE
from xds_server.protocol import course as module
from xds_server.protocol.course import BRIDGE_S, Retired, bridged
from xds_server.protocol.messages import DeltaRequest, SotwRequest
from xds_server.protocol.publication import Stage
from xds_server.protocol.publisher import Publisher
from xds_server.protocol.snapshot import Snapshot
from xds_server.protocol.stream import DeltaStream


def envoys(clusters: str) -> Snapshot:
    """Build a snapshot: one cluster per letter, and a route that names them."""
    content = {name: name.encode() for name in clusters}
    return Snapshot.of(
        {CLUSTER_TYPE: content, ENDPOINT_TYPE: content, ROUTE_TYPE: {"r": clusters.encode()}}
    )


def had(clusters: str) -> DeltaRequest:
    """Return the first request of a delta client that holds these clusters."""
    return DeltaRequest(CLUSTER_TYPE, initial_versions=dict.fromkeys(clusters, "v"))


def test_a_client_that_held_it_gets_it_once_more() -> None:
    """Rule 2: with its assignment, and the routes that are in force."""
    kept = Retired()
    kept.withdraw(envoys("ab"), envoys("b"))
    for request in (had("ab"), SotwRequest(CLUSTER_TYPE, version="old")):
        bridge = bridged(envoys("b"), kept.needed(request, envoys("b")))
        assert set(bridge.resources(CLUSTER_TYPE)) == {"a", "b"}
        assert set(bridge.resources(ENDPOINT_TYPE)) == {"a", "b"}
        assert bridge.version(ROUTE_TYPE) == envoys("b").version(ROUTE_TYPE)


def test_a_new_or_current_client_gets_no_bridge() -> None:
    """Rule 2: a restart of either side changes nothing."""
    kept = Retired()
    kept.withdraw(envoys("ab"), envoys("b"))
    current = envoys("b").version(CLUSTER_TYPE)
    requests = [
        had(""),
        had("b"),
        SotwRequest(CLUSTER_TYPE),
        SotwRequest(CLUSTER_TYPE, version=current),
        SotwRequest(ROUTE_TYPE, version="old"),
    ]
    assert [kept.needed(request, envoys("b")) for request in requests] == [()] * 5


def test_what_is_in_force_again_is_forgotten() -> None:
    """Rule 1."""
    kept = Retired()
    kept.withdraw(envoys("ab"), envoys("b"))
    kept.withdraw(envoys("b"), envoys("ab"))
    assert kept.needed(had("ab"), envoys("ab")) == ()


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 1: the oldest are dropped first."""
    monkeypatch.setattr(module, "MAX_RETIRED", 2)
    kept = Retired()
    kept.withdraw(envoys("abcd"), envoys("d"))
    bridge = bridged(envoys("d"), kept.needed(had("abcd"), envoys("d")))
    assert set(bridge.resources(CLUSTER_TYPE)) == {"b", "c", "d"}


def test_a_returning_client_loses_a_cluster_after_its_routes() -> None:
    """X52: the order is the same as in a change, for this client alone."""
    publisher, stream = Publisher(), DeltaStream("s")
    publisher.publish((Stage("add", "envoy", envoys("ab")),), 0.0)
    publisher.publish((Stage("remove", "envoy", envoys("b")),), 0.0)
    publisher.connect(1, "n", "envoy", stream, 0.0)
    old = envoys("ab")
    first = {
        url: {name: one.version for name, one in old.resources(url).items()}
        for url in (CLUSTER_TYPE, ENDPOINT_TYPE, ROUTE_TYPE)
    }
    said = []
    waiting = [
        DeltaRequest(
            url,
            subscribe=() if url == CLUSTER_TYPE else tuple(versions),
            initial_versions=versions,
        )
        for url, versions in first.items()
    ]
    while waiting:
        sent, _ = publisher.request(1, waiting.pop(0), 0.0)
        for _, response in sent:
            said.append((response.type_url, [r.name for r in response.resources], response.removed))
            waiting.append(DeltaRequest(response.type_url, nonce=response.nonce))
    assert said == [(ROUTE_TYPE, ["r"], ())]
    assert publisher.wake_at == BRIDGE_S
    for _, response in publisher.tick(BRIDGE_S):
        said.append((response.type_url, [r.name for r in response.resources], response.removed))
    assert said == [
        (ROUTE_TYPE, ["r"], ()),
        (CLUSTER_TYPE, [], ("a",)),
        (ENDPOINT_TYPE, [], ("a",)),
    ]


@pytest.mark.parametrize("waves", [False, True])
def test_a_newer_change_does_not_take_the_bridge_away(waves) -> None:
    """The client's routes are still those of before: a cluster removed now would fail requests."""
    publisher, stream = Publisher(), DeltaStream("s")
    publisher.publish((Stage("add", "envoy", envoys("ab")),), 0.0)
    publisher.publish((Stage("remove", "envoy", envoys("b")),), 0.0)
    publisher.connect(1, "n", "envoy", stream, 0.0)
    sent, _ = publisher.request(1, had("ab"), 0.0)
    waiting = [response for _, response in sent]
    _, sent = publisher.publish((Stage("add", "envoy", envoys("bc")),), 0.0, waves=waves)
    waiting += [response for _, response in sent]
    assert not [name for response in waiting for name in response.removed]
    removed_at = None
    now = 0.0
    routes = [DeltaRequest(ROUTE_TYPE, subscribe=("r",))]
    while removed_at is None and now < 5 * BRIDGE_S:
        requests = [*(DeltaRequest(r.type_url, nonce=r.nonce) for r in waiting), *routes]
        waiting, routes = [], []
        for request in requests:
            sent, _ = publisher.request(1, request, now)
            waiting += [response for _, response in sent]
        now += 0.05
        waiting += [response for _, response in publisher.tick(now)]
        if any("a" in response.removed for response in waiting):
            removed_at = now
    assert removed_at is not None
    assert removed_at >= BRIDGE_S
    assert "a" not in stream.snapshot.resources(CLUSTER_TYPE)


def test_a_client_of_an_earlier_server_gets_its_bridge() -> None:
    """What clients may have from before the start is withdrawn by the first stage."""
    publisher, stream = Publisher(), DeltaStream("1")
    publisher.publish([Stage("add", "envoy", envoys("b"), past=(envoys("ac"), envoys("ab")))], 0.0)
    publisher.connect(1, "gw-1", "envoy", stream, 0.0)
    sent, _ = publisher.request(1, had("a"), 0.0)
    assert sorted(r.name for _, response in sent for r in response.resources) == ["a", "b"]
    assert not [name for _, response in sent for name in response.removed]


def test_a_client_that_came_before_the_first_publication_gets_its_bridge() -> None:
    """A server that was restarted accepts connections while it still reads its revisions."""
    publisher, stream = Publisher(), DeltaStream("1")
    publisher.connect(1, "gw-1", "envoy", stream, 0.0)
    assert publisher.request(1, had("a"), 0.0) == ([], None)
    stages = [Stage("add", "envoy", envoys("b"), past=(envoys("ab"),))]
    _, sent = publisher.publish(stages, 0.0)
    assert sorted(r.name for _, response in sent for r in response.resources) == ["a", "b"]
    assert not [name for _, response in sent for name in response.removed]
