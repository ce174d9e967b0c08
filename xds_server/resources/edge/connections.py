"""Bounds and signs of life of connections, and the PROXY protocol.

Sources: ``envoy/config/core/v3/protocol.proto``, ``envoy/config/listener/v3/listener.proto``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from envoy_data_plane.envoy.config.core.v3 import (
    HttpProtocolOptions,
    KeepaliveSettings,
    SocketOption,
)
from envoy_data_plane.envoy.config.listener.v3 import ListenerFilter
from envoy_data_plane.envoy.extensions.filters.listener.proxy_protocol.v3 import ProxyProtocol
from envoy_data_plane.google.protobuf import Any as PackedAny

if TYPE_CHECKING:
    from xds_server.fleet.model.edge import ClientConnections, ReplicaConnections

# Numbers of Linux: socket.h, netinet/tcp.h.
_SOCKET, _KEEPALIVE = 1, 9
_TCP, _IDLE, _INTERVAL, _COUNT = 6, 4, 5, 6
_PROBE_EVERY_S: Final = 10
_PROBES: Final = 5


def proxy_protocol() -> ListenerFilter:
    """Return the listener filter that reads a PROXY header, and requires it."""
    return ListenerFilter(
        name="envoy.filters.listener.proxy_protocol", typed_config=PackedAny.pack(ProxyProtocol())
    )


def socket_options(spec: ClientConnections) -> list[SocketOption]:
    """Return the options of the listening socket, which accepted ones inherit."""
    if not spec.tcp_keepalive:
        return []
    values = (
        (_SOCKET, _KEEPALIVE, 1),
        (_TCP, _IDLE, max(1, round(spec.tcp_keepalive))),
        (_TCP, _INTERVAL, _PROBE_EVERY_S),
        (_TCP, _COUNT, _PROBES),
    )
    return [
        SocketOption(description="keepalive", level=level, name=name, int_value=value)
        for level, name, value in values
    ]


def bounds(options: HttpProtocolOptions, spec: ClientConnections | ReplicaConnections) -> None:
    """Set the longest life of a connection; changes ``options`` in place."""
    if spec.max_duration:
        options.max_connection_duration = timedelta(seconds=spec.max_duration)
    if spec.max_requests:
        options.max_requests_per_connection = spec.max_requests


def keepalive(spec: ClientConnections | ReplicaConnections) -> KeepaliveSettings | None:
    """Return HTTP/2's pings; ``None`` if there are none."""
    if not spec.h2_keepalive:
        return None
    return KeepaliveSettings(
        interval=timedelta(seconds=spec.h2_keepalive),
        timeout=timedelta(seconds=spec.h2_keepalive_timeout),
    )
