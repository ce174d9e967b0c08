"""Filters of the listener that routes enable."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tritonclient.grpc import service_pb2

from support.envoy_messages import listener_of
from support.fleets import fleet, pool
from xds_server.fleet.model.fleet import Fleet
from xds_server.resources.filters.body_model import NAME_FIELDS, before_picker, descriptor_set
from xds_server.resources.filters.scripts import HOLD, MARK, ROUTE_BEFORE, ROUTE_WITHOUT

EXT_PROC = "envoy.filters.http.ext_proc"


def filters(made: Fleet) -> list[str]:
    """Return the names of a listener's HTTP filters, in order; a disabled one in brackets."""
    listed = listener_of(made)[1][0].http_filters
    return [f"({one.name})" if one.disabled else one.name for one in listed]


def test_the_picker_stands_between_the_filters() -> None:
    """All but four and the router are disabled until a route enables them."""
    names = filters(fleet(pool("a", default=True), pool("b")))
    at = names.index(EXT_PROC)
    assert names[:6] == [
        *("tidegate.again", "(tidegate.compress.gzip)", "(tidegate.cors)"),
        *("envoy.filters.http.custom_response", "tidegate.strip", "(tidegate.limit)"),
    ]
    assert all(name.startswith(("(tidegate.unknown.", "(tidegate.before.")) for name in names[6:at])
    assert names[at + 1 : at + 3] == ["(tidegate.late.waited)", "(tidegate.picked)"]
    assert all(
        name.startswith(("(tidegate.without.", "(tidegate.late.")) for name in names[at + 3 : -3]
    )
    assert names[-3:-1] == ["(tidegate.limit.pools)", "(tidegate.usage)"]


def test_another_pool_does_not_change_the_listener() -> None:
    """A changed listener drains its connections, and long streams with them."""
    alone, shared = fleet(pool("a", default=True)), fleet(pool("a", default=True), pool("b"))
    assert listener_of(shared) == listener_of(alone)


@pytest.mark.parametrize("method", NAME_FIELDS)
def test_the_descriptors_read_what_clients_write(method: str) -> None:
    """Our few fields have the numbers of Triton's own service."""
    pool_ = descriptor_pool.DescriptorPool()
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set()).file
    pool_.Add(file)
    described = pool_.FindMessageTypeByName(f"inference.{method}Request")
    ours = message_factory.GetMessageClass(described)
    theirs = "ModelInfer" if method == "ModelStreamInfer" else method
    message = getattr(service_pb2, f"{theirs}Request")(**{NAME_FIELDS[method]: "m"})
    assert getattr(ours.FromString(message.SerializeToString()), NAME_FIELDS[method]) == "m"


def test_the_extraction_names_every_method() -> None:
    """A method that it does not name would pass unread."""
    found = b"".join(before_picker())
    assert all(
        f"inference.GRPCInferenceService.{method}".encode() in found for method in NAME_FIELDS
    )


@pytest.mark.parametrize("script", [HOLD, MARK, ROUTE_BEFORE, ROUTE_WITHOUT])
def test_no_word_of_a_script_is_left_open(script: str) -> None:
    """Each placeholder is filled."""
    assert "@" not in script
