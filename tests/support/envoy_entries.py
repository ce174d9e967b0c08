"""Entries of access logs as Envoy writes them."""

from __future__ import annotations

from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2


def logged(**common) -> als_pb2.StreamAccessLogsMessage:
    """Write a message with one entry, as Envoy does."""
    message = als_pb2.StreamAccessLogsMessage()
    entry = message.http_logs.log_entry.add()
    properties = entry.common_properties
    properties.start_time.seconds = 1_000
    properties.duration.nanos = 500_000_000
    properties.time_to_first_upstream_tx_byte.nanos = 1_000_000
    properties.time_to_first_upstream_rx_byte.nanos = 101_000_000
    properties.upstream_remote_address.socket_address.address = "10.0.0.1"
    properties.upstream_remote_address.socket_address.port_value = 8000
    properties.upstream_cluster = "llm/stable/http"
    properties.upstream_request_attempt_count = 1
    spaces = properties.metadata.filter_metadata
    spaces["tidegate"]["picker"] = "p"
    spaces["tidegate"]["ticket"] = "x-7"
    spaces["envoy.lb"]["x-gateway-destination-endpoint"] = "10.0.0.1:8000,10.0.0.2:8000"
    entry.response.response_code.value = 200
    entry.response.response_body_bytes = 12
    for name, value in common.items():
        setattr(properties, name, value)
    return message


def failed_attempt(**flags: bool) -> als_pb2.StreamAccessLogsMessage:
    """Write the entry of an attempt that read and did not answer, as Envoy does."""
    message = logged(access_log_type=accesslog_pb2.UpstreamEnd, upstream_request_attempt_count=0)
    entry = message.http_logs.log_entry[0]
    entry.common_properties.ClearField("metadata")
    entry.common_properties.ClearField("time_to_first_upstream_rx_byte")
    entry.response.Clear()
    entry.response.response_body_bytes = 2
    entry.request.request_headers["x-tidegate-ticket"] = "x-7;p;10.0.0.9:18001"
    for name, value in flags.items():
        setattr(entry.common_properties.response_flags, name, value)
    return message
