"""Envoy's listener (LDS): one port for HTTP/1.1, h2c and gRPC.

Source: ``envoy/config/listener/v3/listener.proto`` and the HTTP connection manager's protos.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from envoy_data_plane.envoy.config.common.mutation_rules.v3 import (
    HeaderMutation,
    HeaderMutationRules,
)
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    GrpcService,
    GrpcServiceEnvoyGrpc,
    Http2ProtocolOptions,
    SocketAddress,
)
from envoy_data_plane.envoy.config.listener.v3 import Filter, FilterChain, Listener
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessor,
    ExternalProcessorRouteCacheAction,
    HeaderForwardingRules,
    MetadataOptions,
    MetadataOptionsMetadataNamespaces,
    ProcessingMode,
    ProcessingModeBodySendMode,
    ProcessingModeHeaderSendMode,
)
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpConnectionManagerHcmAccessLogOptions,
    HttpFilter,
    Rds,
)
from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation.v3 import (
    HeaderMutation as EarlyHeaderMutation,
)
from envoy_data_plane.envoy.type.matcher.v3 import ListStringMatcher, StringMatcher
from envoy_data_plane.google.protobuf import Any as PackedAny

from tidegate_api.names import (
    CLUSTER_ATTRIBUTE,
    HEADERS_ATTRIBUTE,
    LB_NAMESPACE,
    LISTENER_NAME,
    LOAD_BIN_HEADER,
    LOAD_HEADER,
    PICKER_CLUSTER,
    ROUTE_ATTRIBUTE,
    ROUTE_CONFIG_NAME,
    STRIPPED_HEADERS,
    SUBSET_NAMESPACE,
    TIDEGATE_NAMESPACE,
)
from xds_server.fleet.model.fields import split_host_port
from xds_server.resources.access_log import RUNNING, access_logs, attempt_logs
from xds_server.resources.reads import upstream_filters
from xds_server.resources.routes import session_headers
from xds_server.resources.secrets import downstream
from xds_server.resources.sources import ads_source, extension

if TYPE_CHECKING:
    from xds_server.fleet.model.fleet import Fleet, Pickers

_H2_STREAM_WINDOW = 65_535
"""Initial stream window: the smallest that HTTP/2 allows at the start. A larger one would let Envoy
receive more than `listener.buffer_bytes`."""

_FORWARDED_HEADERS = (
    ":method",
    ":path",
    "content-type",
    "content-length",
    "content-encoding",
    "grpc-encoding",
    "grpc-timeout",
    "inference-header-content-length",
    "x-request-id",
    "traceparent",
    "tracestate",
    # On responses, for pools that request load reports.
    LOAD_HEADER,
    LOAD_BIN_HEADER,
)
"""Headers sent to the picker, beside `tidegate-*`, session and variant headers. Credentials are
never sent."""


def listener(fleet: Fleet) -> bytes:
    """Return the serialized ``Listener``."""
    host, port = split_host_port(fleet.listener.address)
    tls = fleet.listener.tls
    manager = HttpConnectionManager(
        stat_prefix="ingress",
        rds=Rds(route_config_name=ROUTE_CONFIG_NAME, config_source=ads_source()),
        use_remote_address=True,
        http2_protocol_options=Http2ProtocolOptions(
            initial_stream_window_size=_H2_STREAM_WINDOW,
            initial_connection_window_size=1024 * 1024,
        ),
        # Upper limit; the routes set the timeout of idle streams.
        stream_idle_timeout=timedelta(hours=1),
        request_headers_timeout=timedelta(seconds=fleet.listener.headers_timeout),
        early_header_mutation_extensions=[
            extension(
                "strip",
                EarlyHeaderMutation(mutations=[HeaderMutation(remove=h) for h in STRIPPED_HEADERS]),
            )
        ],
        access_log=access_logs(fleet.pickers),
        access_log_options=HttpConnectionManagerHcmAccessLogOptions(
            access_log_flush_interval=RUNNING
        ),
        http_filters=[
            HttpFilter(
                name="envoy.filters.http.ext_proc",
                typed_config=PackedAny.pack(
                    _external_processor(fleet.pickers, session_headers(fleet))
                ),
            ),
            HttpFilter(
                name="envoy.filters.http.router",
                typed_config=PackedAny.pack(
                    Router(
                        upstream_log=attempt_logs(fleet.pickers),
                        upstream_http_filters=upstream_filters(),
                    )
                ),
            ),
        ],
    )
    message = Listener(
        name=LISTENER_NAME,
        address=Address(socket_address=SocketAddress(address=host, port_value=port)),
        per_connection_buffer_limit_bytes=fleet.listener.buffer_bytes,
        filter_chains=[
            FilterChain(
                filters=[
                    Filter(
                        name="envoy.filters.network.http_connection_manager",
                        typed_config=PackedAny.pack(manager),
                    )
                ],
                transport_socket=None if tls is None else downstream(tls),
            )
        ],
    )
    return bytes(message)


def _external_processor(pickers: Pickers, headers: list[str]) -> ExternalProcessor:
    allowed = [StringMatcher(exact=name) for name in (*_FORWARDED_HEADERS, *headers)]
    allowed.append(StringMatcher(prefix="tidegate-"))
    return ExternalProcessor(
        grpc_service=GrpcService(envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=PICKER_CLUSTER)),
        failure_mode_allow=pickers.fail_open,
        message_timeout=timedelta(seconds=pickers.timeout),
        processing_mode=ProcessingMode(
            request_header_mode=ProcessingModeHeaderSendMode.SEND,
            response_header_mode=ProcessingModeHeaderSendMode.SKIP,
            request_body_mode=ProcessingModeBodySendMode.NONE,
        ),
        # The picker requests the first part of a body only if it needs it (body-mode override).
        allow_mode_override=True,
        # Cleared only if the picker has chosen pool or variant; clearing it always would draw the
        # variant again.
        route_cache_action=ExternalProcessorRouteCacheAction.DEFAULT,
        request_attributes=[CLUSTER_ATTRIBUTE, ROUTE_ATTRIBUTE, HEADERS_ATTRIBUTE],
        forward_rules=HeaderForwardingRules(allowed_headers=ListStringMatcher(patterns=allowed)),
        # Requests of a sequence must not be retried on another replica: x-envoy-max-retries.
        mutation_rules=HeaderMutationRules(allow_envoy=True),
        metadata_options=MetadataOptions(
            forwarding_namespaces=MetadataOptionsMetadataNamespaces(
                untyped=[LB_NAMESPACE, SUBSET_NAMESPACE]
            ),
            receiving_namespaces=MetadataOptionsMetadataNamespaces(
                untyped=[LB_NAMESPACE, TIDEGATE_NAMESPACE]
            ),
        ),
    )
