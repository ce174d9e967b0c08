"""The filter that reads token counts from streamed answers."""

from __future__ import annotations

from envoy.config.route.v3 import route_components_pb2, route_pb2

from support.fleets import fleet, pool
from tidegate_api.names import ROUTE_CONFIG_NAME, ROUTE_TYPE, USAGE_FILTER
from xds_server.resources.filters.usage import usage_filter
from xds_server.snapshots.build import front_resources


def reading(*pools) -> set[str]:
    """Return the names of the routes that enable the filter."""
    data = front_resources(fleet(*pools))[ROUTE_TYPE][ROUTE_CONFIG_NAME]
    (host,) = route_pb2.RouteConfiguration.FromString(data).virtual_hosts
    found = set()
    for route in host.routes:
        if USAGE_FILTER in route.typed_per_filter_config:
            settings = route_components_pb2.FilterConfig()
            assert route.typed_per_filter_config[USAGE_FILTER].Unpack(settings)
            assert settings.HasField("config")
            assert not settings.config.type_url, "enabled as it is"
            found.add(route.name)
    return found


def test_nothing_is_read_unless_a_pool_asks() -> None:
    """Envoy would parse each event of each answer."""
    assert usage_filter().disabled
    assert not reading(pool())


def test_the_routes_of_a_pool_that_asks_are_read() -> None:
    """So are those whose pool only the body names."""
    read = reading(pool(telemetry={"usage": True}))
    assert any(name.startswith("unnamed/") for name in read)
    assert any(not name.startswith("unnamed/") for name in read)
