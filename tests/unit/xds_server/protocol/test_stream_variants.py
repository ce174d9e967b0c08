"""What one variant of ADS does alone: state of the world, and delta."""

from __future__ import annotations

import pytest

from support.ads_clients import BASE, BOTH, Delta, Sotw, settled, snap, state
from tidegate_api.names import CLUSTER_TYPE, ENDPOINT_TYPE
from xds_server.protocol.messages import ProtocolError, SotwRequest
from xds_server.protocol.tracker import MAX_NAMES

# --- state of the world ---------------------------------------------------------------------------


def test_sotw_answers_changed_names_at_an_unchanged_version() -> None:
    """X16, X17, X54: new names, also those that come again; their order does not matter."""
    client = Sotw(snap(EDS={"a": "1", "b": "1"}))
    client.ask("EDS", "a")
    client.ack("EDS")
    assert client.ask("EDS", "b", "a") == [("EDS", ["b"])]
    client.ack("EDS")
    assert client.ask("EDS", "a", "b") == []
    assert client.ask("EDS", "a") == []
    assert client.ask("EDS", "a", "b") == [("EDS", ["b"])]


@BOTH
def test_what_is_dropped_in_flight_does_not_become_held(client_type: type[Sotw]) -> None:
    """X17, X40: Envoy discards resources that it no longer watches, then requests them again."""
    client = client_type(snap(EDS={"a": "1"}))
    client.ask("EDS", "a")
    if client_type is Sotw:
        client.ask("EDS")
        # Envoy acknowledged nothing meanwhile; its next request carries the newest nonce.
        assert client.ask("EDS", "a") == [("EDS", ["a"])]
    else:
        client.ask("EDS", drop=("a",))  # type: ignore[call-arg] # delta only
        client.ask("EDS", "a")
        assert client.ack("EDS") == [("EDS", ["a"])]
    assert client.ack("EDS") == []


def test_sotw_whole_sets_and_parts() -> None:
    """X28, X29: CDS carries all resources, EDS only the changed ones."""
    base = {"CDS": {"a": "1", "b": "1"}, "EDS": {"a": "1", "b": "1"}}
    client = Sotw(snap(**base))
    client.ask("EDS", "a", "b")
    client.ack("EDS")
    client.ask("CDS")
    client.ack("CDS")
    client.ack("EDS")
    assert client.push(snap(CDS={"a": "2", "b": "1"}, EDS=base["EDS"])) == [
        ("CDS", ["a", "b"]),
        ("EDS", ["a"]),
    ]
    client.ack("CDS")
    client.ack("EDS")
    assert client.push(snap(CDS={"a": "2", "b": "1"}, EDS={"a": "1", "b": "2"})) == [("EDS", ["b"])]


def test_sotw_is_silent_about_missing_names() -> None:
    """X31: nothing is sent until it exists; a deletion is not sent; a recreation is."""
    client = Sotw(snap(EDS={}))
    assert client.ask("EDS", "a") == []
    assert state(client, "EDS") == "NOT_SENT"
    assert client.push(snap(EDS={"a": "1"})) == [("EDS", ["a"])]
    client.ack("EDS")
    assert client.push(snap(EDS={})) == []
    assert client.push(snap(EDS={"a": "1"})) == [("EDS", ["a"])]


def test_sotw_on_demand_clusters_are_silent_until_they_exist() -> None:
    """X31, X60: a named CDS subscription to nothing gets no empty set."""
    client = Sotw(snap(CDS={"other": "1"}))
    assert client.ask("CDS", "c1") == []
    assert client.push(snap(CDS={"other": "1", "c1": "1"})) == [("CDS", ["c1"])]


def test_sotw_reconnect_is_answered_without_route_jumps() -> None:
    """X5, X19, X51: an old version is no ACK; routes from an earlier stream wait for clusters."""
    client = Sotw(snap(**BASE))
    version = snap(**BASE).version(CLUSTER_TYPE)
    assert client.ask("CDS", version=version) == [("CDS", ["c1"])]
    assert client.ask("EDS", "c1", version="old") == [("EDS", ["c1"])]
    assert client.ask("RDS", "r", version="old") == []
    client.ack("EDS")
    assert client.ack("CDS") == [("RDS", ["r"])]


def test_sotw_names_of_a_stale_request_still_count() -> None:
    """X15, X16: the latest names are answered with the next ACK at the latest."""
    client = Sotw(snap(EDS={"a": "1", "b": "1"}))
    client.ask("EDS", "a")
    client.stream.on_request(SotwRequest(ENDPOINT_TYPE, ("a", "b")), 0.0)
    assert client.ask("EDS", "a", "b") == [("EDS", ["b"])]


# --- delta ----------------------------------------------------------------------------------------


def test_delta_sends_only_what_changed() -> None:
    """X36, X37: the resource's own version decides."""
    client = Delta(snap(CDS={"a": "1", "b": "1"}))
    assert client.ask("CDS") == [("CDS", ["a", "b"])]
    client.ack("CDS")
    assert client.push(snap(CDS={"a": "1", "b": "2"})) == [("CDS", ["b"])]


def test_delta_takes_names_from_a_request_with_a_stale_nonce() -> None:
    """X38: subscriptions are applied even if the nonce is invalid."""
    client = Delta(snap(EDS={"a": "1"}))
    assert client.ask("EDS", "a", nonce="void") == [("EDS", ["a"])]


def test_delta_spontaneous_requests_need_no_nonce() -> None:
    """X39: Envoy subscribes to the assignments of new clusters in this way."""
    client = settled(Delta(snap(**BASE)))
    client.push(snap(**{**BASE, "CDS": {"c1": "1", "c2": "1"}, "EDS": {"c1": "1", "c2": "1"}}))
    assert client.ask("EDS", "c2") == [("EDS", ["c2"])]


def test_delta_subscribing_a_known_name_is_answered() -> None:
    """X40: a client that subscribes again does not hold the resource."""
    client = Delta(snap(EDS={"a": "1"}))
    client.ask("EDS", "a")
    client.ack("EDS")
    assert client.ask("EDS", "a") == [("EDS", ["a"])]


def test_delta_dropping_a_name_under_a_wildcard_is_answered() -> None:
    """X42: with the resource, or with its absence."""
    client = Delta(snap(CDS={"a": "1"}))
    client.ask("CDS", "*", "a", "gone")
    client.ack("CDS")
    assert client.ask("CDS", drop=("a", "gone")) == [("CDS", ["a", "-gone"])]
    assert client.ack("CDS") == []


def test_delta_reports_a_missing_name_once() -> None:
    """X43: removed_resources once; it stays subscribed and is sent when it is created."""
    client = Delta(snap(EDS={}))
    assert client.ask("EDS", "a") == [("EDS", ["-a"])]
    assert client.ack("EDS") == []
    assert client.push(snap(EDS={}, CDS={})) == []
    assert client.push(snap(EDS={"a": "1"})) == [("EDS", ["a"])]
    client.ack("EDS")
    assert client.push(snap(EDS={})) == [("EDS", ["-a"])]


def test_settings_of_filters_are_never_reported_missing() -> None:
    """Connections that drain pass the filter still; Envoy drops the name with the last of them."""
    client = Delta(snap(ECDS={"a": "1"}))
    assert client.ask("ECDS", "a") == [("ECDS", ["a"])]
    client.ack("ECDS")
    assert client.push(snap(ECDS={})) == []
    assert state(client, "ECDS") == "SYNCED"
    assert client.push(snap(ECDS={"a": "2"})) == [("ECDS", ["a"])]
    client.ack("ECDS")
    assert client.ask("ECDS", drop=("a",)) == []
    returned = Delta(snap(ECDS={}))
    assert returned.ask("ECDS", "a", held={"a": "1"}) == []


def test_delta_reconnect_with_current_versions_gets_nothing() -> None:
    """X45: initial_resource_versions are trusted, also when a wildcard begins."""
    snapshot = snap(CDS={"a": "1"})
    client = Delta(snapshot)
    held = {"a": snapshot.resources(CLUSTER_TYPE)["a"].version}
    assert client.ask("CDS", held=held) == []
    assert state(client, "CDS") == "SYNCED"


def test_delta_reconnect_gets_differences_and_removals() -> None:
    """X45: also for names removed in the meantime; names not subscribed are ignored."""
    snapshot = snap(CDS={"a": "1", "b": "2"}, EDS={"a": "1"})
    client = Delta(snapshot)
    held = {"a": snapshot.resources(CLUSTER_TYPE)["a"].version, "b": "old", "c": "old"}
    assert client.ask("CDS", held=held) == [("CDS", ["b", "-c"])]
    assert client.ask("EDS", "a", held={"x": "old"}) == [("EDS", ["a"])]


def test_delta_reconnect_repushes_assignments_of_changed_clusters() -> None:
    """X45, X53: the assignment of a changed cluster is sent despite a current initial version."""
    snapshot = snap(CDS={"a": "2"}, EDS={"a": "1"})
    client = Delta(snapshot)
    client.ask("CDS", held={"a": "old"})
    held = {"a": snapshot.resources(ENDPOINT_TYPE)["a"].version}
    assert client.ask("EDS", "a", held=held) == [("EDS", ["a"])]


def test_delta_initial_versions_are_bounded() -> None:
    """The number of names that the server keeps for a client is bounded."""
    client = Delta(snap(**BASE))
    with pytest.raises(ProtocolError, match="initial resource versions"):
        client.ask("CDS", held={str(n): "v" for n in range(MAX_NAMES + 1)})
