"""Which routes hold uploads that got no pick."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.config.route.v3 import route_components_pb2

from xds_server.fleet.model.routing import Routing
from xds_server.resources.routes.processing import process, without_picker

HELD = {"tidegate.late.waited", "tidegate.late.hold"}


def route_of(body: Any, **settings: Any) -> Any:
    """Return a route in this mode."""
    route = route_components_pb2.Route()
    process(route, Routing(**settings), body)
    return route


@pytest.mark.parametrize(
    ("body", "held"), [("peek", 8192), ("full", 9000), ("none", None), ("duplex", None)]
)
def test_what_a_picker_reads_is_held_up_to_the_buffer_of_the_route(body, held):
    """A stream is never held, nor what is forwarded at its headers anyway."""
    route = route_of(body, peek_bytes=8192, max_body=9000)
    assert HELD & set(route.typed_per_filter_config) == (HELD if held else set())
    fields = route.metadata.filter_metadata["envoy.filters.http.lua"].fields
    assert fields["hold"].number_value == (held or 0)
    assert held in (None, route.request_body_buffer_limit.value)


def test_a_route_without_a_picker_holds_nothing():
    """There every request is without a pick."""
    route = route_of("peek")
    without_picker(route)
    assert not HELD & set(route.typed_per_filter_config)
