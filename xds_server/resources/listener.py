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
from functools import cache
from typing import TYPE_CHECKING

from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    Http1ProtocolOptions,
    Http2ProtocolOptions,
    Http3ProtocolOptions,
    HttpProtocolOptions,
    SocketAddress,
    SocketAddressProtocol,
)
from envoy_data_plane.envoy.config.listener.v3 import (
    Filter,
    FilterChain,
    FilterChainMatch,
    Listener,
    ListenerFilter,
    QuicProtocolOptions,
    UdpListenerConfig,
)
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.listener.http_inspector.v3 import HttpInspector
from envoy_data_plane.envoy.extensions.filters.listener.tls_inspector.v3 import TlsInspector
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpConnectionManagerCodecType,
    HttpConnectionManagerForwardClientCertDetails,
    HttpConnectionManagerHcmAccessLogOptions,
    HttpConnectionManagerPathWithEscapedSlashesAction,
    HttpConnectionManagerSetCurrentClientCertDetails,
    HttpConnectionManagerTracing,
    HttpFilter,
    Rds,
)
from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation.v3 import (
    HeaderMutation as EarlyHeaderMutation,
)
from envoy_data_plane.google.protobuf import Any as PackedAny

from tidegate_api.names import (
    HTTP3_LISTENER_NAME,
    LISTENER_NAME,
    ROUTE_CONFIG_NAME,
    STRIPPED_HEADERS,
)
from xds_server.fleet.guards.fronts import fronts
from xds_server.fleet.memo import ByIdentity
from xds_server.fleet.model.fields import split_host_port
from xds_server.resources.access_log import RUNNING, access_logs, attempt_logs
from xds_server.resources.edge.connections import (
    bounds,
    keepalive,
    proxy_protocol,
    socket_options,
)
from xds_server.resources.edge.filters import filters_after, filters_before, first_filters, guarded
from xds_server.resources.edge.operators import patched_listener
from xds_server.resources.edge.request_log import request_logs, tracing
from xds_server.resources.filters.again import again_filter, restore_filter
from xds_server.resources.filters.body_model import before_picker, without_pick
from xds_server.resources.filters.discovered import picker_filter, strip_filter
from xds_server.resources.filters.held_uploads import hold_filter, waited_filter
from xds_server.resources.filters.matched_again import moved_filter, unpicked_filter
from xds_server.resources.filters.placed import placed_filter
from xds_server.resources.filters.unknown_models import unknown_model_filter
from xds_server.resources.filters.usage import usage_filter
from xds_server.resources.local_replies import local_replies
from xds_server.resources.reads import upstream_filters
from xds_server.resources.secrets import downstream, quic
from xds_server.resources.sources import ads_source, extension

if TYPE_CHECKING:
    from envoy_data_plane.envoy.config.core.v3 import TransportSocket

    from xds_server.fleet.model.listener import ListenerSpec

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

_ACCEPTED_TOGETHER = 8
"""Connections that a worker accepts before it serves others and hears of overload. Without a bound
it accepts all that waited, and reads them all before it hears that the heap is full."""

_HOST_OF_HTTP_10 = "tidegate"
"""HTTP/1.0 requests may have no `host` header."""


def all_listeners(spec: ListenerSpec, slots: int) -> dict[str, bytes]:
    """Return each serialized ``Listener`` by its name; arguments as of ``listener``."""
    found = {}
    for front in fronts(spec):
        found[further(LISTENER_NAME, front.name)] = listener(
            front.spec, slots, of=front.name, forwards_names=front.operators
        )
        if front.spec.http3:
            found[HTTP3_LISTENER_NAME] = http3_listener(front.spec, slots)
    return found


def listener(
    spec: ListenerSpec,
    slots: int,
    *,
    of: str = "",
    forwards_names: bool = False,
) -> bytes:
    """Return the serialized ``Listener``.

    Args:
        spec: Its settings.
        slots: Number of log slots.
        of: Name of a further listener.
        forwards_names: Whether upstreams are told the names of clients' certificates.
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
    routes = further(ROUTE_CONFIG_NAME, of)
    tls_socket = None if tls is None else downstream(tls, of)
    usual, h2 = (
        _chain(tls_socket, _common(spec, slots), _naming(manager) if forwards_names else manager)
        for manager in (_manager(spec, timeout, routes) for timeout in (spec.upload_timeout, 0.0))
    )
    h2.filter_chain_match = FilterChainMatch(application_protocols=["h2c" if tls is None else "h2"])
    bounded = spec.upload_timeout > 0
    message = Listener(
        name=further(LISTENER_NAME, of),
        address=Address(socket_address=SocketAddress(address=host, port_value=port)),
        per_connection_buffer_limit_bytes=spec.buffer_bytes,
        max_connections_to_accept_per_socket_event=_ACCEPTED_TOGETHER,
        filter_chains=[usual, h2] if bounded else [usual],
        listener_filters=[
            *([proxy_protocol()] if spec.proxy_protocol else []),
            *([inspector] if bounded else []),
        ],
        # A connection that sends nothing is kept, but where it has to say whose it is.
        continue_on_listener_filters_timeout=not spec.proxy_protocol,
        socket_options=socket_options(spec.connections),
    )
    return patched_listener(bytes(message), spec.patch)


def http3_listener(spec: ListenerSpec, slots: int) -> bytes:
    """Return the serialized ``Listener`` for HTTP/3; arguments as of ``listener``."""
    host, port = split_host_port(spec.address)
    manager = _manager(spec, 0.0, ROUTE_CONFIG_NAME)
    manager.codec_type = HttpConnectionManagerCodecType.HTTP3
    manager.http3_protocol_options = Http3ProtocolOptions()
    address = SocketAddress(address=host, port_value=port, protocol=SocketAddressProtocol.UDP)
    message = Listener(
        name=HTTP3_LISTENER_NAME,
        address=Address(socket_address=address),
        per_connection_buffer_limit_bytes=spec.buffer_bytes,
        filter_chains=[_chain(quic(), _common(spec, slots), manager)],
        udp_listener_config=UdpListenerConfig(quic_options=QuicProtocolOptions()),
    )
    return patched_listener(bytes(message), spec.patch)


def further(name: str, of: str) -> str:
    """Return the name of a resource of a further listener; ``of`` is empty for the first one."""
    return f"{name}/{of}" if of else name


def _chain(
    socket: TransportSocket | None, common: bytes, manager: HttpConnectionManager
) -> FilterChain:
    """Return a chain whose manager has these serialized fields, too."""
    packed = PackedAny.pack(manager)
    packed.value += common
    return FilterChain(
        filters=[Filter(name="envoy.filters.network.http_connection_manager", typed_config=packed)],
        transport_socket=socket,
    )


def _naming(manager: HttpConnectionManager) -> HttpConnectionManager:
    """Let a manager write the names of the client's certificate over what the client sent."""
    manager.forward_client_cert_details = HttpConnectionManagerForwardClientCertDetails.SANITIZE_SET
    manager.set_current_client_cert_details = HttpConnectionManagerSetCurrentClientCertDetails(
        uri=True, dns=True
    )
    return manager


def _manager(spec: ListenerSpec, upload_timeout: float, routes: str) -> HttpConnectionManager:
    """Return a manager without the fields of ``_common``."""
    traced = tracing(spec)
    common = HttpProtocolOptions(max_headers_count=_MAX_HEADERS)
    bounds(common, spec.connections)
    if spec.connections.idle:
        common.idle_timeout = timedelta(seconds=spec.connections.idle)
    return HttpConnectionManager(
        stat_prefix="ingress",
        rds=Rds(route_config_name=routes, config_source=ads_source()),
        use_remote_address=True,
        # Clients find their requests by the ids that they sent.
        preserve_external_request_id=True,
        normalize_path=True,
        merge_slashes=True,
        # OpenAI's own client asks for `/v1/models/org%2Fmodel`.
        path_with_escaped_slashes_action=HttpConnectionManagerPathWithEscapedSlashesAction.UNESCAPE_AND_FORWARD,
        max_request_headers_kb=_MAX_HEADERS_KIB,
        common_http_protocol_options=common,
        http1_safe_max_connection_duration=bool(spec.connections.max_duration),
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
            connection_keepalive=keepalive(spec.connections),
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
        tracing=None if traced is None else HttpConnectionManagerTracing.parse(traced),
        access_log_options=HttpConnectionManagerHcmAccessLogOptions(
            access_log_flush_interval=RUNNING
        ),
    )


@ByIdentity
def _common(spec: ListenerSpec, slots: int) -> bytes:
    """Return serialized fields that all managers of a listener have: most of it, built once.

    Replies, of a few hundred parts, are a message apart: betterproto2 takes longer to read and
    write them than all others.
    """
    message = HttpConnectionManager(
        access_log=[*access_logs(slots), *map(AccessLog.parse, request_logs(spec))],
        http_filters=[
            HttpFilter.parse(restore_filter()),
            *first_filters(spec),
            HttpFilter.parse(again_filter()),
            strip_filter(),
            *filters_before(spec),
            unknown_model_filter(),
            *map(HttpFilter.parse, before_picker()),
            picker_filter(),
            *map(
                HttpFilter.parse,
                (
                    waited_filter(),
                    moved_filter(),
                    *without_pick(),
                    hold_filter(),
                    placed_filter(),
                    unpicked_filter(),
                ),
            ),
            *filters_after(spec),
            usage_filter(),
            _router(slots),
        ],
    )
    return bytes(message) + local_replies(guarded=guarded(spec))


@cache
def _router(slots: int) -> HttpFilter:
    """Return the last HTTP filter; all managers with so many log slots have the same."""
    settings = Router(upstream_log=attempt_logs(slots), upstream_http_filters=upstream_filters())
    return HttpFilter(name="envoy.filters.http.router", typed_config=PackedAny.pack(settings))
