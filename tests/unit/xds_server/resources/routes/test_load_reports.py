"""Routes of pools that request load reports."""

from __future__ import annotations

from typing import Any

from envoy.extensions.filters.http.ext_proc.v3 import ext_proc_pb2, processing_mode_pb2

from support.envoy_messages import read_routes
from support.fleets import endpoint, fleet, pool
from xds_server.resources.routes.table import route_configuration

MODE = processing_mode_pb2.ProcessingMode


def shown(*pools: dict[str, Any]) -> dict[str, tuple[bool, bool]]:
    """Return by route: whether response headers are sent, and whether the report is requested."""
    found = {}
    for name, route in read_routes(route_configuration(fleet(*pools))).items():
        settings = ext_proc_pb2.ExtProcPerRoute()
        route.typed_per_filter_config["envoy.filters.http.ext_proc"].Unpack(settings)
        if not settings.disabled:
            mode = settings.overrides.processing_mode.response_header_mode
            asked = {one.header.key: one.header.value for one in route.request_headers_to_add}
            report = asked.get("endpoint-load-metrics-format") == "json"
            found[name] = (mode == MODE.SEND, report)
    return found


def test_by_default_nothing_is_asked() -> None:
    """Each report costs one more message per request."""
    assert set(shown().values()) == {(False, False)}


def test_only_pools_that_request_reports() -> None:
    """On unnamed routes response headers are sent if any pool requests reports."""
    path = "/v1/completions"
    asks = pool("a", match={"models": ["a"], "paths": [path]}, telemetry={"orca": True})
    other = pool(
        "b",
        default=True,
        match={"models": ["b"], "paths": [path]},
        endpoints=[endpoint(4), endpoint(5, variant="canary")],
    )
    found = shown(asks, other)
    for name, (sent, report) in found.items():
        ours = name.startswith(("a/", "picked/a/", "without-pick/a/"))
        assert report == ours, name
        assert sent == (ours or name.startswith("unnamed/")), name
    assert any(name.startswith("unnamed/") for name in found)
