"""The resources of clients, as operators ask for them."""

from __future__ import annotations

import pytest
from google.protobuf import any_pb2

from tidegate_api.admin.v1 import admin_pb2
from tidegate_api.names import CLUSTER_TYPE, ENDPOINT_TYPE
from xds_server.admin.views import configs
from xds_server.fleet.change import UnknownName
from xds_server.protocol.messages import ClientView, ResourceView

CLIENTS = tuple(
    ClientView(name, "envoy", "delta", "ipv4:127.0.0.1:1", 1.0, (), number=number)
    for number, name in enumerate(("edge-1", "edge-2"), 1)
)


def resource(url: str, name: str, version: str = "v2", acked: str = "v2") -> ResourceView:
    """Return a resource without content."""
    packed = any_pb2.Any(type_url=url).SerializeToString()
    state = "SYNCED" if version == acked else "STALE"
    return ResourceView(url, name, version, acked, state, packed)


HELD = {
    1: [resource(CLUSTER_TYPE, "llm/stable/grpc"), resource(ENDPOINT_TYPE, "llm/stable/grpc")],
    2: [resource(CLUSTER_TYPE, "vision/a/http", acked="v1")],
}


def dumped(**request: object) -> admin_pb2.GetConfigResponse:
    """Return the answer to a request."""
    asked = admin_pb2.GetConfigRequest(**request)
    found = configs.collected(asked, CLIENTS, lambda number: HELD[number])
    return configs.answer(found, content=asked.content)


def names(answer: admin_pb2.GetConfigResponse) -> list[tuple[str, str, str]]:
    """Return client, type and name of each resource."""
    return [(each.node, one.type, one.name) for each in answer.clients for one in each.resources]


def test_all_clients_and_resources_are_shown() -> None:
    """With the versions that they are to have and that they have."""
    answer = dumped()
    assert len(names(answer)) == 3
    late = answer.clients[1].resources[0]
    assert (late.version, late.version_acked, late.state) == ("v2", "v1", "STALE")
    assert late.json == ""


@pytest.mark.parametrize(
    ("request_", "found"),
    [
        ({"client": "edge-2"}, [("edge-2", "CDS", "vision/a/http")]),
        ({"type": "eds"}, [("edge-1", "EDS", "llm/stable/grpc")]),
        ({"name": "vision/*"}, [("edge-2", "CDS", "vision/a/http")]),
        ({"name": "*stable*", "type": "CDS"}, [("edge-1", "CDS", "llm/stable/grpc")]),
        ({"name": "llm"}, []),
        ({"name": "llm.*"}, []),
    ],
)
def test_filters_are_exact(request_: dict[str, str], found: list[tuple[str, str, str]]) -> None:
    """A star stands for any part of a name, and nothing else is a pattern."""
    assert names(dumped(**request_)) == found


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"client": "edge-3"}, "no client 'edge-3'; did you mean 'edge-"),
        ({"type": "POOLS"}, "no type of resources 'POOLS'; did you mean 'POOL'"),
    ],
)
def test_mistyped_names_are_answered_with_the_closest(request_: dict[str, str], said: str) -> None:
    """An empty answer would look as if there were nothing."""
    with pytest.raises(UnknownName) as caught:
        dumped(**request_)
    assert said in str(caught.value)


def test_content_is_converted_once_for_equal_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand Envoys hold the same resources."""
    seen = []
    monkeypatch.setattr(configs, "readable", lambda packed: seen.append(packed) or {})
    same = [resource(CLUSTER_TYPE, "c")]
    request = admin_pb2.GetConfigRequest(content=True)
    answer = configs.answer(configs.collected(request, CLIENTS, lambda _: same), content=True)
    assert [one.json for each in answer.clients for one in each.resources] == ["{}", "{}"]
    assert len(seen) == 1


def test_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no room is counted."""
    monkeypatch.setattr(configs, "MAX_RESOURCES", 2)
    assert len(names(dumped())) == 2
    assert dumped().left_out == 1
    monkeypatch.setattr(configs, "MAX_RESOURCES", 10)
    monkeypatch.setattr(configs, "MAX_JSON_CHARS", 1)
    assert dumped(content=True).left_out == 3
