"""Web pages of other origins (CORS), and compressed answers.

Both stand first in the chain, so that refusals of the filters behind them can be read by pages too.
What Envoy's routes refuse cannot: to them the filter does not apply.

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
from xds_server.resources.routes.pins import header_is, header_present
from xds_server.resources.routes.processing import without_picker
from xds_server.resources.sources import discovered, extension

if TYPE_CHECKING:
    from xds_server.fleet.model.edge import Compression
    from xds_server.fleet.model.edge import Cors as CorsSpec

_PREFLIGHT = ("origin", "access-control-request-method")
_LIBRARIES = {"gzip": Gzip, "brotli": Brotli, "zstd": Zstd}


def cors_filter() -> HttpFilter:
    """Return the listener's filter for other origins."""
    return HttpFilter(name=CORS_FILTER, typed_config=PackedAny.pack(Cors()))


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


def compress_filters(spec: Compression | None) -> list[HttpFilter]:
    """Return the listener's filters that compress, one per algorithm."""
    names = [] if spec is None else [COMPRESS_FILTERS[each] for each in _offered(spec)]
    return [discovered(name, Compressor()) for name in names]


def compress_settings(spec: Compression | None) -> dict[str, Compressor]:
    """Return the settings of these filters by name."""
    if spec is None:
        return {}
    offered = _offered(spec)
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
            choose_first=each == offered[0],
        )
        for each in offered
    }


def _offered(spec: Compression) -> list[str]:
    return list(dict.fromkeys(spec.algorithms))
