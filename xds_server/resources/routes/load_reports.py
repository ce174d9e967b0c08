"""Load reports in response headers (ORCA), for pools that request them.

A request header asks the replica for the report, and the route makes Envoy send the response
headers to the picker. On an *unnamed* route the pool is not known when Envoy selects what it sends,
so there the headers are sent if any pool requests load reports. The picker's reply removes the
report: clients get none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import ext_proc_pb2, processing_mode_pb2

from tidegate_api.names import LOAD_FORMAT_HEADER, UNNAMED_ROUTE_PREFIX, parse_cluster

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xds_server.fleet.model.fleet import Fleet

_EXT_PROC = "envoy.filters.http.ext_proc"
_OVERWRITE = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_SEND = processing_mode_pb2.ProcessingMode.SEND


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
