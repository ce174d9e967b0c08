"""What a route lets the picker see of a request (ext_proc, per route).

Source: ``envoy/extensions/filters/http/ext_proc/v3/ext_proc.proto``.

Load reports (ORCA): a request header asks the replica for one, and the route makes Envoy send the
response headers to the picker, whose reply removes the report: clients get none. On an *unnamed*
route the pool is not known yet, so there the headers are sent if any pool requests load reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import ext_proc_pb2, processing_mode_pb2

from tidegate_api.names import (
    LOAD_FORMAT_HEADER,
    PICKER_FILTER,
    UNNAMED_ROUTE_PREFIX,
    parse_cluster,
)
from xds_server.resources.filters.held_uploads import hold_nothing, hold_uploads
from xds_server.resources.filters.matched_again import bound_nothing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidegate_api.pools import BodyMode
    from xds_server.fleet.model.fleet import Fleet, PoolSpec
    from xds_server.fleet.model.routing import Routing

_RETRY_BODY_LIMIT = 1024 * 1024
"""Bytes of a request that Envoy keeps for a retry if the picker reads no body."""

_EXT_PROC = "envoy.filters.http.ext_proc"
_OVERWRITE = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_SEND = processing_mode_pb2.ProcessingMode.SEND


def may_go_unpicked(fleet: Fleet, routing: Routing) -> bool:
    """Return whether Envoy balances a pool's requests by itself where it gets no pick."""
    if routing.without_picker is None:
        return fleet.pickers.fail_open
    return routing.without_picker == "open"


def process(route: Any, routing: Routing, body: BodyMode | Literal["duplex"]) -> None:
    """Set what the picker is sent, and how much of a request Envoy keeps for retries.

    One limit bounds both what Envoy buffers for the picker and what it keeps for a retry. A larger
    request is sent only once (in ``full`` it is rejected with 413).

    In ``peek`` the picker itself requests the first part (``mode_override``): as a mode of the
    route, BUFFERED_PARTIAL would turn HTTP requests into chunked ones. In ``duplex`` every message
    goes through the picker, which also needs the request's trailers.

    The picker does not read the trailers of an answer. Sending them keeps its stream open until the
    end of the exchange where its last reply is that to the headers; after a reply to a body Envoy
    keeps it open anyway.
    """
    mode = processing_mode_pb2.ProcessingMode
    settings = ext_proc_pb2.ExtProcPerRoute()
    settings.overrides.processing_mode.CopyFrom(
        mode(
            request_header_mode=mode.SEND,
            response_header_mode=mode.SKIP,
            request_body_mode={
                "full": mode.BUFFERED,
                "duplex": mode.FULL_DUPLEX_STREAMED,
            }.get(body, mode.NONE),
            request_trailer_mode=mode.SEND if body == "duplex" else mode.DEFAULT,
            response_trailer_mode=mode.SKIP if body in ("full", "duplex") else mode.SEND,
        )
    )
    if routing.without_picker is not None:
        settings.overrides.failure_mode_allow.value = routing.without_picker == "open"
    route.typed_per_filter_config[PICKER_FILTER].Pack(settings, deterministic=True)
    route.request_body_buffer_limit.value = repeated_bytes(routing, body)
    if body in ("peek", "full"):
        hold_uploads(route, route.request_body_buffer_limit.value)


def close_with(route: Any, pools: Iterable[PoolSpec]) -> None:
    """Refuse what no picker answers for, if one of the pools that share a route wants it."""
    if all(pool.routing.without_picker != "closed" for pool in pools):
        return
    settings = ext_proc_pb2.ExtProcPerRoute()
    packed = route.typed_per_filter_config[PICKER_FILTER]
    if packed.Unpack(settings) and not settings.disabled:
        settings.overrides.failure_mode_allow.value = False
        packed.Pack(settings, deterministic=True)


def repeated_bytes(routing: Routing, body: BodyMode | Literal["duplex"] | None = None) -> int:
    """Return the most bytes of a body that Envoy can send again; ``body`` is the pool's mode."""
    mode = routing.body if body is None else body
    return {"peek": routing.peek_bytes, "full": routing.max_body}.get(mode, _RETRY_BODY_LIMIT)


def at_least_peek(body: BodyMode) -> BodyMode:
    """Return the mode that reads at least the first part of a body."""
    return "peek" if body == "none" else body


def without_picker(route: Any) -> None:
    """Keep the picker out of a route."""
    hold_nothing(route)
    bound_nothing(route)
    off = ext_proc_pb2.ExtProcPerRoute(disabled=True)
    route.typed_per_filter_config[PICKER_FILTER].Pack(off, deterministic=True)


def ask_for_loads(routes: Iterable[Any], fleet: Fleet) -> None:
    """Change the routes of pools that request load reports, in place."""
    asking = {pool.name for pool in fleet.pools if pool.telemetry.orca}
    if not asking:
        return
    for route in routes:
        if not route.HasField("route"):
            continue
        clusters = route.route.weighted_clusters.clusters
        ref = parse_cluster(route.route.cluster or clusters[0].name)
        if ref is not None and ref.pool in asking:
            added = route.request_headers_to_add.add(append_action=_OVERWRITE)
            # JSON, because Triton's text format contains "=", which not every parser accepts; in
            # lower case, because Triton compares it so (`src/orca_http.cc`).
            added.header.key, added.header.value = LOAD_FORMAT_HEADER, "json"
        elif not route.name.startswith(UNNAMED_ROUTE_PREFIX):
            continue
        settings = ext_proc_pb2.ExtProcPerRoute()
        if route.typed_per_filter_config[_EXT_PROC].Unpack(settings) and not settings.disabled:
            settings.overrides.processing_mode.response_header_mode = _SEND
            route.typed_per_filter_config[_EXT_PROC].Pack(settings, deterministic=True)
