"""Web pages of other origins (CORS), and compressed answers.

Both stand first in the chain, so that refusals of the filters behind them can be read by pages too.
What Envoy's routes refuse cannot: to them the filter does not apply. The filters are in each
listener, disabled, and routes enable them, so that they are switched on without draining
connections; of the algorithms only the default one is always there.

Sources: ``cors/v3/cors.proto`` and ``compressor/v3/compressor.proto`` of Envoy's
``extensions/filters/http``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.filters.http.cors.v3 import cors_pb2
from envoy_data_plane.envoy.config.core.v3 import RuntimeFeatureFlag
from envoy_data_plane.envoy.extensions.compression.brotli.compressor.v3 import Brotli
from envoy_data_plane.envoy.extensions.compression.gzip.compressor.v3 import Gzip
from envoy_data_plane.envoy.extensions.compression.zstd.compressor.v3 import Zstd
from envoy_data_plane.envoy.extensions.filters.http.compressor.v3 import (
    Compressor,
    CompressorCommonDirectionConfig,
    CompressorResponseDirectionConfig,
)
from envoy_data_plane.envoy.extensions.filters.http.cors.v3 import Cors
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.google.protobuf import Any as PackedAny

from tidegate_api.names import COMPRESS_FILTERS, CORS_FILTER, SENT_HEADER
from xds_server.fleet.channels import compressors
from xds_server.fleet.model.edge import Compression
from xds_server.resources.routes.pins import header_is, header_present
from xds_server.resources.routes.processing import without_picker
from xds_server.resources.sources import discovered, extension

if TYPE_CHECKING:
    from xds_server.fleet.model.edge import Cors as CorsSpec
    from xds_server.fleet.model.listener import ListenerSpec

_PREFLIGHT = ("origin", "access-control-request-method")
_LIBRARIES = {"gzip": Gzip, "brotli": Brotli, "zstd": Zstd}


def cors_filter() -> HttpFilter:
    """Return the listener's filter for other origins."""
    return HttpFilter(name=CORS_FILTER, typed_config=PackedAny.pack(Cors()), disabled=True)


def admit_origins(host: Any, spec: CorsSpec | None) -> None:
    """Write the policy into a virtual host, for all of its routes.

    A preflight question needs a route that forwards, or Envoy's filter leaves it alone. It never
    forwards: the filter answers all of them, and the header with the cluster is never there.
    """
    if spec is None:
        return
    asked = [header_is(":method", "OPTIONS"), *map(header_present, _PREFLIGHT)]
    match = route_components_pb2.RouteMatch(prefix="/", headers=asked)
    question = route_components_pb2.Route(name="preflight", match=match)
    question.route.cluster_header = SENT_HEADER
    without_picker(question)
    routes = list(host.routes)
    del host.routes[:]
    host.routes.extend([question, *routes])
    policy = cors_pb2.CorsPolicy(
        allow_methods=", ".join(spec.methods),
        allow_headers=", ".join(spec.headers),
        expose_headers=", ".join(spec.expose),
        max_age=str(int(spec.max_age)),
    )
    policy.allow_credentials.value = spec.credentials
    policy.forward_not_matching_preflights.value = False
    for origin in spec.origins:
        matcher = policy.allow_origin_string_match.add()
        if "*" in origin:
            wild = ".*" if origin == "*" else r"[A-Za-z0-9.-]+"
            parts = (re.escape(part) for part in origin.split("*"))
            matcher.safe_regex.regex = wild.join(parts)
        else:
            matcher.exact = origin
    host.typed_per_filter_config[CORS_FILTER].Pack(policy, deterministic=True)


def compress_filters(listener: ListenerSpec) -> list[HttpFilter]:
    """Return the listener's filters that compress, one per algorithm."""
    made = [discovered(COMPRESS_FILTERS[name], Compressor()) for name in compressors(listener)]
    for each in made:
        each.disabled = True
    return made


def compress(config: Any, spec: Compression | None) -> None:
    """Let the routes of a ``RouteConfiguration`` compress answers by what is offered."""
    enabled = route_components_pb2.FilterConfig()
    enabled.config.SetInParent()
    for each in () if spec is None else spec.algorithms:
        name = COMPRESS_FILTERS[each]
        config.typed_per_filter_config[name].Pack(enabled, deterministic=True)


def compress_settings(listener: ListenerSpec) -> dict[str, Compressor]:
    """Return the settings of these filters by name."""
    spec = listener.compression or Compression()
    return {
        COMPRESS_FILTERS[each]: Compressor(
            compressor_library=extension(each, _LIBRARIES[each]()),
            response_direction_config=CompressorResponseDirectionConfig(
                common_config=CompressorCommonDirectionConfig(
                    enabled=RuntimeFeatureFlag(
                        default_value=True, runtime_key="tidegate.compression"
                    ),
                    min_content_length=spec.min_bytes,
                    content_type=list(spec.content_types),
                ),
            ),
            choose_first=each == spec.algorithms[0],
        )
        for each in compressors(listener)
    }
