"""Envoy's listener (LDS): one port for HTTP/1.0, HTTP/1.1, h2c and gRPC.

Paths are normalised before routes match: slashes are unescaped and merged, `.` and `..` resolved.
HTTP/1 and HTTP/2 have a filter chain each, which differ in one setting: Envoy bounds the time of an
upload for all streams of a chain alike, and a gRPC stream that waits for its first answer while its
client goes on sending is no stalled upload.

The bounds below follow Envoy's guide "Configuring Envoy as an edge proxy"; bounds of the whole
process (memory, connections) are in the bootstrap.

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
    Http1ProtocolOptions,
    Http2ProtocolOptions,
    HttpProtocolOptions,
    SocketAddress,
)
from envoy_data_plane.envoy.config.listener.v3 import (
    Filter,
    FilterChain,
    FilterChainMatch,
    Listener,
    ListenerFilter,
)
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
from envoy_data_plane.envoy.extensions.filters.listener.http_inspector.v3 import HttpInspector
from envoy_data_plane.envoy.extensions.filters.listener.tls_inspector.v3 import TlsInspector
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpConnectionManagerHcmAccessLogOptions,
    HttpConnectionManagerPathWithEscapedSlashesAction,
    HttpFilter,
    LocalReplyConfig,
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
from xds_server.fleet.rules.edge import choosing_headers
from xds_server.resources.access_log import RUNNING, access_logs, attempt_logs
from xds_server.resources.filters.body_model import before_picker, without_pick
from xds_server.resources.filters.picked_pool import match_again
from xds_server.resources.local_replies import local_replies
from xds_server.resources.reads import upstream_filters
from xds_server.resources.routes import session_headers
from xds_server.resources.secrets import downstream
from xds_server.resources.sources import ads_source, extension

if TYPE_CHECKING:
    from xds_server.fleet.model.fleet import Fleet, Pickers

_H2_STREAM_WINDOW = 65_535
"""Initial stream window: the smallest that HTTP/2 allows at the start. A larger one would let Envoy
receive more than `listener.buffer_bytes`."""

_MAX_HEADERS_KIB = 32
"""Size of a request's headers; Triton's own HTTP server takes 8 KiB."""

_MAX_HEADERS = 100
"""Number of a request's headers."""

_MAX_STREAMS = 1024
"""HTTP/2 streams of one connection at a time: gRPC clients put all their calls on one."""

_RESET_BURST, _RESETS_PER_S = 2000, 200
"""HTTP/2 streams of one connection that a client may reset at once, and per second after that;
beyond it the connection is closed. A client that leaves all its streams at once resets each."""

_MAX_ANSWERS, _MAX_CONTROL_ANSWERS = 10_000, 1000
"""HTTP/2 frames, and of them control frames, that may wait for a client that does not read."""

_HOST_OF_HTTP_10 = "tidegate"
"""HTTP/1.0 requests may have no `host` header."""

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
    inspector = (
        ListenerFilter(
            name="envoy.filters.listener.http_inspector",
            typed_config=PackedAny.pack(HttpInspector()),
        )
        if tls is None
        else ListenerFilter(
            name="envoy.filters.listener.tls_inspector",
            typed_config=PackedAny.pack(TlsInspector()),
        )
    )
    # Every other connection: HTTP/1, and one that sends nothing yet, which must not be closed.
    usual = _chain(fleet, fleet.listener.upload_timeout)
    h2 = _chain(fleet, 0.0)
    h2.filter_chain_match = FilterChainMatch(application_protocols=["h2c" if tls is None else "h2"])
    bounded = fleet.listener.upload_timeout > 0
    message = Listener(
        name=LISTENER_NAME,
        address=Address(socket_address=SocketAddress(address=host, port_value=port)),
        per_connection_buffer_limit_bytes=fleet.listener.buffer_bytes,
        filter_chains=[usual, h2] if bounded else [usual],
        listener_filters=[inspector] if bounded else [],
        continue_on_listener_filters_timeout=True,
    )
    return bytes(message)


def _chain(fleet: Fleet, upload_timeout: float) -> FilterChain:
    tls = fleet.listener.tls
    return FilterChain(
        filters=[
            Filter(
                name="envoy.filters.network.http_connection_manager",
                typed_config=PackedAny.pack(_manager(fleet, upload_timeout)),
            )
        ],
        transport_socket=None if tls is None else downstream(tls),
    )


def _manager(fleet: Fleet, upload_timeout: float) -> HttpConnectionManager:
    return HttpConnectionManager(
        stat_prefix="ingress",
        rds=Rds(route_config_name=ROUTE_CONFIG_NAME, config_source=ads_source()),
        use_remote_address=True,
        normalize_path=True,
        merge_slashes=True,
        # OpenAI's own client asks for `/v1/models/org%2Fmodel`.
        path_with_escaped_slashes_action=HttpConnectionManagerPathWithEscapedSlashesAction.UNESCAPE_AND_FORWARD,
        local_reply_config=LocalReplyConfig.parse(local_replies()),
        max_request_headers_kb=_MAX_HEADERS_KIB,
        common_http_protocol_options=HttpProtocolOptions(max_headers_count=_MAX_HEADERS),
        http_protocol_options=Http1ProtocolOptions(
            accept_http_10=True, default_host_for_http_10=_HOST_OF_HTTP_10
        ),
        http2_protocol_options=Http2ProtocolOptions(
            initial_stream_window_size=_H2_STREAM_WINDOW,
            initial_connection_window_size=1024 * 1024,
            max_concurrent_streams=_MAX_STREAMS,
            max_outbound_frames=_MAX_ANSWERS,
            max_outbound_control_frames=_MAX_CONTROL_ANSWERS,
            stream_reset_burst=_RESET_BURST,
            stream_reset_rate=_RESETS_PER_S,
        ),
        # Upper limit; the routes set the timeout of idle streams.
        stream_idle_timeout=timedelta(hours=1),
        # From the first byte to the last, or to the beginning of the answer.
        request_timeout=timedelta(seconds=upload_timeout),
        request_headers_timeout=timedelta(seconds=fleet.listener.headers_timeout),
        early_header_mutation_extensions=[
            extension(
                "strip",
                EarlyHeaderMutation(
                    mutations=[HeaderMutation(remove=h) for h in stripped_headers(fleet)]
                ),
            )
        ],
        access_log=access_logs(fleet.pickers),
        access_log_options=HttpConnectionManagerHcmAccessLogOptions(
            access_log_flush_interval=RUNNING
        ),
        http_filters=[
            *map(HttpFilter.parse, before_picker(fleet)),
            HttpFilter(
                name="envoy.filters.http.ext_proc",
                typed_config=PackedAny.pack(
                    _external_processor(fleet.pickers, session_headers(fleet))
                ),
            ),
            *map(HttpFilter.parse, (match_again(), *without_pick(fleet))),
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


def stripped_headers(fleet: Fleet) -> list[str]:
    """Return the names of the headers that are removed from clients' requests."""
    choosing = sorted(choosing_headers(fleet))
    return [*STRIPPED_HEADERS, *(name for name in choosing if not fleet.listener.takes(name))]


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
