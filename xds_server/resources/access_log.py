"""Envoy's access log service: each entry goes to the picker that made the pick.

There is one log sink per picker, with a filter on the metadata that each pick writes; entries
without a pick are not sent. A single picker gets its entries over the pickers' own cluster, and the
filter only tests for the presence of the metadata, so that the picker need not know its address.

Source: ``envoy/extensions/access_loggers/grpc/v3/als.proto``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog, AccessLogFilter, MetadataFilter
from envoy_data_plane.envoy.config.core.v3 import (
    ApiVersion,
    GrpcService,
    GrpcServiceEnvoyGrpc,
)
from envoy_data_plane.envoy.extensions.access_loggers.grpc.v3 import (
    CommonGrpcAccessLogConfig,
    HttpGrpcAccessLogConfig,
)
from envoy_data_plane.envoy.type.matcher.v3 import (
    MetadataMatcher,
    MetadataMatcherPathSegment,
    StringMatcher,
    ValueMatcher,
)
from envoy_data_plane.google.protobuf import Any as PackedAny

from tidegate_api.names import LOG_CLUSTER_PREFIX, PICKER_AT_KEY, PICKER_CLUSTER, TIDEGATE_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xds_server.fleet.model.fleet import Pickers

FLUSH: Final = timedelta(seconds=0.2)
"""Longest time for which Envoy buffers an entry; it also flushes at 16 KiB."""

RUNNING: Final = timedelta(seconds=1)
"""Interval of the intermediate entries of a running request."""

_GRPC_STATUS: Final = "grpc-status"


def log_clusters(pickers: Pickers) -> Mapping[str, str]:
    """Return the additional clusters that log sinks need: name -> the picker's address."""
    if len(pickers.addresses) == 1:
        return {}
    return {LOG_CLUSTER_PREFIX + address: address for address in pickers.addresses}


def access_logs(pickers: Pickers) -> list[AccessLog]:
    """Return the listener's log sinks."""
    several = log_clusters(pickers)
    if not several:
        there = ValueMatcher(present_match=True)
        return [_sink(PICKER_CLUSTER, there)] if pickers.addresses else []
    return [
        _sink(cluster, ValueMatcher(string_match=StringMatcher(exact=address)))
        for cluster, address in several.items()
    ]


def _sink(cluster: str, value: ValueMatcher) -> AccessLog:
    config = HttpGrpcAccessLogConfig(
        common_config=CommonGrpcAccessLogConfig(
            log_name="tidegate",
            transport_api_version=ApiVersion.V3,
            # The default authority is the cluster's name, whose slash is invalid there.
            grpc_service=GrpcService(
                envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=cluster, authority=PICKER_CLUSTER)
            ),
            buffer_flush_interval=FLUSH,
        ),
        additional_response_headers_to_log=[_GRPC_STATUS],
        additional_response_trailers_to_log=[_GRPC_STATUS],
    )
    matcher = MetadataMatcher(
        filter=TIDEGATE_NAMESPACE,
        path=[MetadataMatcherPathSegment(key=PICKER_AT_KEY)],
        value=value,
    )
    return AccessLog(
        name="envoy.access_loggers.http_grpc",
        filter=AccessLogFilter(
            metadata_filter=MetadataFilter(matcher=matcher, match_if_key_not_found=False)
        ),
        typed_config=PackedAny.pack(config),
    )
