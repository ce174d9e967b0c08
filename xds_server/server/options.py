"""Options and bounds of the ADS port's gRPC server."""

from __future__ import annotations

from typing import Final

MAX_RECEIVE_BYTES: Final = 8 * 2**20
MAX_SEND_BYTES: Final = 64 * 2**20

SERVER_OPTIONS: Final = (
    # Envoy pings idle streams (connection_keepalive). By default gRPC answers with GOAWAY after
    # about four pings without data, which would end the ADS stream every two minutes.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    # The server pings too, to detect clients that vanished without closing the connection.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # The keepalive timeout alone does not bound the wait for a ping's answer: it took 89 s.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    ("grpc.max_send_message_length", MAX_SEND_BYTES),
    # Two servers on one port would each get half of the clients; a port in use must be an error.
    ("grpc.so_reuseport", 0),
)

ENDING_S: Final = 1.0
"""Seconds for which a stop waits for handlers that gRPC has cancelled."""

MAX_STREAMS: Final = 4096
"""Most ADS streams at a time; further ones get RESOURCE_EXHAUSTED."""

MAX_OUTBOX: Final = 64
"""Most messages queued for a client before its requests are no longer read."""

FIRST_REQUEST_S: Final = 30.0
"""A stream that sends no request within this time, in seconds, is closed."""
