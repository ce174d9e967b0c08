"""Responses encoded by concatenation equal those that protobuf encodes."""

from dataclasses import replace

import pytest
from envoy.service.discovery.v3 import discovery_pb2

from xds_server.protocol import wire
from xds_server.protocol.messages import DeltaRequest, ProtocolError, ResourceResponse, SotwRequest
from xds_server.protocol.snapshot import Snapshot

T = "type.googleapis.com/test.Thing"


def _response(size: int) -> ResourceResponse:
    snapshot = Snapshot.of({T: {"a": b"x" * size, "b": b""}})
    return ResourceResponse(T, "v", "n-1", tuple(snapshot.resources(T).values()), ("gone",))


@pytest.mark.parametrize("size", [0, 1, 127, 128, 20_000, 3_000_000])
def test_sotw_bytes_parse_back(size: int) -> None:
    """A concatenated DiscoveryResponse parses to its parts, for every size of the length varint."""
    parsed = discovery_pb2.DiscoveryResponse.FromString(wire.write_sotw(_response(size)))
    assert (parsed.type_url, parsed.version_info, parsed.nonce) == (T, "v", "n-1")
    assert [(r.type_url, r.value) for r in parsed.resources] == [(T, b"x" * size), (T, b"")]


@pytest.mark.parametrize("size", [0, 128, 20_000])
def test_delta_bytes_parse_back(size: int) -> None:
    """A concatenated DeltaDiscoveryResponse parses to its parts."""
    response = _response(size)
    parsed = discovery_pb2.DeltaDiscoveryResponse.FromString(wire.write_delta(response))
    assert (parsed.type_url, parsed.system_version_info, parsed.nonce) == (T, "v", "n-1")
    assert list(parsed.removed_resources) == ["gone"]
    assert [(r.name, r.version, r.resource.value) for r in parsed.resources] == [
        ("a", response.resources[0].version, b"x" * size),
        ("b", response.resources[1].version, b""),
    ]


def test_requests_are_read() -> None:
    """Every field that the state machines use is converted."""
    sotw = discovery_pb2.DiscoveryRequest(
        type_url=T, resource_names=["a"], version_info="v", response_nonce="n"
    )
    assert wire.read_sotw(sotw) == SotwRequest(T, ("a",), "v", "n", None)
    delta = discovery_pb2.DeltaDiscoveryRequest(
        type_url=T,
        resource_names_subscribe=["a"],
        resource_names_unsubscribe=["b"],
        initial_resource_versions={"c": "1"},
        response_nonce="n",
    )
    assert wire.read_delta(delta) == DeltaRequest(T, ("a",), ("b",), {"c": "1"}, "n", None)


def test_versions_end_in_the_mark_on_the_wire_only() -> None:
    """Those of sets and of resources; what is read is what was written."""
    response = _response(1)
    sotw = discovery_pb2.DiscoveryResponse.FromString(wire.write_sotw(response, "-a"))
    delta = discovery_pb2.DeltaDiscoveryResponse.FromString(wire.write_delta(response, "-a"))
    assert sotw.version_info == delta.system_version_info == "v-a"
    held = {each.name: each.version for each in delta.resources}
    asked = discovery_pb2.DeltaDiscoveryRequest(initial_resource_versions=held)
    read = wire.read_delta(asked, "-a").initial_versions
    assert read == {each.name: each.version for each in response.resources}
    again = discovery_pb2.DiscoveryRequest(version_info=sotw.version_info)
    assert wire.read_sotw(again, "-a").version == "v"


@pytest.mark.parametrize("version", ["v", "v-b", "-aa"])
def test_a_version_without_the_mark_is_of_another_history(version: str) -> None:
    """Also one beside others that have it."""
    with pytest.raises(wire.OtherHistoryError):
        wire.read_sotw(discovery_pb2.DiscoveryRequest(version_info=version), "-a")
    held = {"b": "1-a", "c": version}
    with pytest.raises(wire.OtherHistoryError):
        wire.read_delta(discovery_pb2.DeltaDiscoveryRequest(initial_resource_versions=held), "-a")
    assert not wire.read_sotw(discovery_pb2.DiscoveryRequest(), "-a").holds


def test_an_error_without_words_is_still_a_nack() -> None:
    """X11: presence of error_detail makes a NACK."""
    request = discovery_pb2.DiscoveryRequest(type_url=T)
    request.error_detail.SetInParent()
    assert wire.read_sotw(request).error == ""
    request.error_detail.message = "bad"
    assert wire.read_sotw(request).error == "bad"


def test_a_node_needs_an_id_of_bounded_length() -> None:
    """X1: the first request identifies the client; status rows need a name."""
    request = discovery_pb2.DiscoveryRequest()
    with pytest.raises(ProtocolError, match=r"node\.id"):
        wire.node_of(request)
    request.node.id, request.node.cluster = "gw-1", "gateway"
    assert wire.node_of(request) == wire.XdsNode("gw-1", "gateway")
    request.node.cluster = "x" * (wire.MAX_NODE_CHARS + 1)
    with pytest.raises(ProtocolError, match="at most"):
        wire.node_of(request)


def test_an_envoy_states_its_build_and_its_group() -> None:
    """A quarantine ends with a build, and waves go by groups; others state no such number."""
    request = discovery_pb2.DiscoveryRequest(node={"id": "gw-1", "user_agent_name": "envoy"})
    assert wire.node_of(request).build is None
    request.node.metadata.update({"tidegate.node_group": "canary"})
    built = request.node.user_agent_build_version
    built.metadata.update({"revision.sha": "abc"})
    version = built.version
    version.major_number, version.minor_number, version.patch = 1, 36, 4
    node = wire.node_of(request)
    assert (node.build, node.release, node.group) == ((1, 36, 4), "envoy 1.36.4 abc", "canary")
    request.node.user_agent_name = "gRPC Go"
    assert wire.node_of(request).build is None


def test_a_node_without_build_and_group_has_none() -> None:
    """Both are optional, and of any type in hostile metadata."""
    request = discovery_pb2.DiscoveryRequest()
    request.node.id = "gw-1"
    assert wire.node_of(request) == wire.XdsNode("gw-1", "")
    request.node.metadata.update({"tidegate.node_group": 7})
    assert wire.node_of(request).group == ""
    request.node.metadata.update({"tidegate.node_group": "x" * 257})
    with pytest.raises(ProtocolError, match="at most 256"):
        wire.node_of(request)


def test_an_envoy_names_its_own_pickers() -> None:
    """Bounded, and none where the metadata is of another type."""
    request = discovery_pb2.DiscoveryRequest()
    request.node.id = "gw-1"
    request.node.metadata.update({"tidegate.pickers": "10.0.0.1:1, 10.0.0.2:1,,"})
    assert wire.node_of(request).pickers == {"10.0.0.1:1", "10.0.0.2:1"}
    request.node.metadata.update({"tidegate.pickers": [1]})
    assert wire.node_of(request).pickers == frozenset()
    request.node.metadata.update({"tidegate.pickers": "x" * 257})
    with pytest.raises(ProtocolError, match=r"tidegate\.pickers have at most 256"):
        wire.node_of(request)


@pytest.mark.parametrize("write", [wire.write_sotw, wire.write_delta])
def test_clients_with_the_same_need_share_all_but_the_nonce(monkeypatch, write) -> None:
    """What a message carries is encoded once, however many clients it is sent to."""
    encoded = []

    def counted(part):
        return lambda resource, *mark: encoded.append(resource) or part(resource, *mark)

    for name in ("_sotw_part", "_delta_part"):
        monkeypatch.setattr(wire, name, counted(getattr(wire, name)))
    wire._sotw_shared.cache_clear()
    wire._delta_shared.cache_clear()
    first, second = _response(500), replace(_response(500), nonce="n-2")
    assert write(first).replace(b"n-1", b"n-2") == write(second)
    assert encoded == list(first.resources)


def test_messages_kept_for_other_clients_are_bounded() -> None:
    """The oldest is forgotten, so that memory does not grow with changes."""
    for size in range(50):
        wire.write_delta(_response(size))
        wire.write_sotw(_response(size))
    for shared in (wire._delta_shared, wire._sotw_shared):
        assert shared.cache_info().currsize == wire._SHARED
