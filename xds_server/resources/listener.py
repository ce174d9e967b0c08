"""Envoy's listener (LDS): one port for HTTP/1.0, HTTP/1.1, h2c and gRPC.

Paths are normalised before routes match: slashes are unescaped and merged, `.` and `..` resolved.
HTTP/1 and HTTP/2 have a filter chain each, which differ in one setting: Envoy bounds the time of an
upload for all streams of a chain alike, and a gRPC stream that waits for its first answer while its
client goes on sending is no stalled upload.

A changed listener drains its connections, so it depends only on what Envoy has nowhere else. All
else is in routes, or in filters whose settings Envoy asks for by name (``filters/discovered.py``).

The bounds below follow Envoy's guide "Configuring Envoy as an edge proxy"; bounds of the whole
process (memory, connections) are in the bootstrap.

Source: ``envoy/config/listener/v3/listener.proto`` and the HTTP connection manager's protos.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
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
from envoy_data_plane.google.protobuf import Any as PackedAny

from tidegate_api.names import LISTENER_NAME, ROUTE_CONFIG_NAME, STRIPPED_HEADERS
from xds_server.fleet.model.fields import split_host_port
from xds_server.resources.access_log import RUNNING, access_logs, attempt_logs
from xds_server.resources.filters.body_model import before_picker, without_pick
from xds_server.resources.filters.discovered import picker_filter, strip_filter
from xds_server.resources.filters.picked_pool import match_again
from xds_server.resources.filters.usage import usage_filter
from xds_server.resources.local_replies import local_replies
from xds_server.resources.reads import upstream_filters
from xds_server.resources.secrets import downstream
from xds_server.resources.sources import ads_source, extension

if TYPE_CHECKING:
    from xds_server.fleet.model.fleet import ListenerSpec

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


def listener(spec: ListenerSpec, slots: int) -> bytes:
    """Return the serialized ``Listener``.

    Args:
        spec: Its settings.
        slots: Number of log slots.
    """
    host, port = split_host_port(spec.address)
    tls = spec.tls
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
    usual = _chain(spec, slots, spec.upload_timeout)
    h2 = _chain(spec, slots, 0.0)
    h2.filter_chain_match = FilterChainMatch(application_protocols=["h2c" if tls is None else "h2"])
    bounded = spec.upload_timeout > 0
    message = Listener(
        name=LISTENER_NAME,
        address=Address(socket_address=SocketAddress(address=host, port_value=port)),
        per_connection_buffer_limit_bytes=spec.buffer_bytes,
        filter_chains=[usual, h2] if bounded else [usual],
        listener_filters=[inspector] if bounded else [],
        continue_on_listener_filters_timeout=True,
    )
    return bytes(message)


def _chain(spec: ListenerSpec, slots: int, upload_timeout: float) -> FilterChain:
    tls = spec.tls
    return FilterChain(
        filters=[
            Filter(
                name="envoy.filters.network.http_connection_manager",
                typed_config=PackedAny.pack(_manager(spec, slots, upload_timeout)),
            )
        ],
        transport_socket=None if tls is None else downstream(tls),
    )


def _manager(spec: ListenerSpec, slots: int, upload_timeout: float) -> HttpConnectionManager:
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
        request_headers_timeout=timedelta(seconds=spec.headers_timeout),
        early_header_mutation_extensions=[
            extension(
                "strip",
                EarlyHeaderMutation(
                    mutations=[HeaderMutation(remove=name) for name in STRIPPED_HEADERS]
                ),
            )
        ],
        access_log=access_logs(slots),
        access_log_options=HttpConnectionManagerHcmAccessLogOptions(
            access_log_flush_interval=RUNNING
        ),
        http_filters=[
            strip_filter(),
            *map(HttpFilter.parse, before_picker()),
            picker_filter(),
            *map(HttpFilter.parse, (match_again(), *without_pick())),
            usage_filter(),
            HttpFilter(
                name="envoy.filters.http.router",
                typed_config=PackedAny.pack(
                    Router(
                        upstream_log=attempt_logs(slots),
                        upstream_http_filters=upstream_filters(),
                    )
                ),
            ),
        ],
    )
