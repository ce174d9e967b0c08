"""Envoy's access log for operators, and its tracing: what is in them, and where they go.

Rules:

1. An entry has nothing of a body, a query string, a credential or a session. What clients write
   freely is the request's id alone; the path is told by the name of the route.
2. The sinks are part of the listener, the shares of requests that are logged and traced are runtime
   values. So a log that is set up with `percent: 0` is switched on without draining a connection.
3. A collector has a cluster of its own, whose name does not depend on its address.
4. A request is logged once, at its end. The intermediate entries are for pickers alone.

Source: "Access logging" of Envoy's documentation for the operators; ``HttpConnectionManager``'s
``Tracing`` for the runtime key of its share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

# Registers the types by which the messages are packed.
from envoy.config.accesslog.v3 import accesslog_pb2
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.trace.v3 import opentelemetry_pb2  # noqa: F401
from envoy.extensions.access_loggers.file.v3 import file_pb2
from envoy.extensions.access_loggers.open_telemetry.v3 import logs_service_pb2
from envoy.extensions.access_loggers.stream.v3 import stream_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2  # noqa: F401
from google.protobuf import json_format

from tidegate_api.names import (
    DESTINATION_HEADER,
    LB_NAMESPACE,
    LOG_COLLECTOR_CLUSTER,
    REASON_HEADER,
    REQUEST_ID_HEADER,
    TIDEGATE_NAMESPACE,
    TOLD_KEY,
    TRACE_COLLECTOR_CLUSTER,
    USAGE_NAMESPACE,
)
from xds_server.fleet.model.fields import split_host_port, split_name_port
from xds_server.resources.fractions import fraction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xds_server.fleet.model.listener import ListenerSpec

LOG_SHARE_KEY: Final = "tidegate.access_log.percent"
"""Runtime key of the share of requests that is logged."""
TRACE_SHARE_KEY: Final = "tracing.random_sampling"
"""Runtime key of the share of requests that is traced; the name is Envoy's."""
_TYPES: Final = "type.googleapis.com/envoy."
_UPSTREAM_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def _ours(*keys: str) -> str:
    return f"%DYNAMIC_METADATA({':'.join((TIDEGATE_NAMESPACE, *keys))})%"


def _told(key: str) -> str:
    return f"%DYNAMIC_METADATA({USAGE_NAMESPACE}:{key})%"


FIELDS: Final[Mapping[str, str]] = {
    "start": "%START_TIME%",
    "request_id": f"%REQ({REQUEST_ID_HEADER}):128%",
    "trace_id": "%TRACE_ID%",
    "method": "%REQ(:METHOD)%",
    "route": "%ROUTE_NAME%",
    "protocol": "%PROTOCOL%",
    "status": "%RESPONSE_CODE%",
    "grpc_status": "%GRPC_STATUS_NUMBER%",
    "flags": "%RESPONSE_FLAGS_LONG%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "refused": f"%RESP({REASON_HEADER})%",
    "cluster": "%UPSTREAM_CLUSTER_RAW%",
    "picker": _ours("picker"),
    "ticket": _ours("ticket"),
    "pool": _ours(TOLD_KEY, "pool"),
    "variant": _ours(TOLD_KEY, "variant"),
    "picked": f"%DYNAMIC_METADATA({LB_NAMESPACE}:{DESTINATION_HEADER})%",
    "served": "%UPSTREAM_REMOTE_ADDRESS%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "reason": _ours(TOLD_KEY, "reason"),
    "prompt_tokens": _ours(TOLD_KEY, "prompt_tokens"),
    "predicted_tokens": _ours(TOLD_KEY, "predicted_tokens"),
    "told_prompt_tokens": _told("prompt"),
    "told_cached_tokens": _told("cached"),
    "told_output_tokens": _told("output"),
    "bytes_received": "%BYTES_RECEIVED%",
    "bytes_sent": "%BYTES_SENT%",
    "sent_ms": "%COMMON_DURATION(DS_RX_BEG:US_TX_BEG:ms)%",
    "first_byte_ms": "%COMMON_DURATION(DS_RX_BEG:US_RX_BODY_BEG:ms)%",
    "duration_ms": "%DURATION%",
}
"""Key of an entry -> what Envoy writes there; what does not apply is ``null``."""


def request_logs(spec: ListenerSpec) -> list[bytes]:
    """Return the serialized ``AccessLog`` of each sink of a listener."""
    log = spec.access_log
    if log is None:
        return []
    sinks: list[tuple[str, Any, dict[str, Any]]] = []
    line = {"log_format": {"json_format": dict(FIELDS)}}
    if log.stdout:
        sinks.append(("stdout", stream_pb2.StdoutAccessLog(), line))
    if log.file is not None:
        sinks.append(("file", file_pb2.FileAccessLog(), {"path": log.file, **line}))
    if log.otlp is not None:
        config = {
            "common_config": {
                "log_name": "tidegate",
                "transport_api_version": "V3",
                "grpc_service": _grpc(LOG_COLLECTOR_CLUSTER),
            },
            "attributes": {
                "values": [
                    {"key": key, "value": {"string_value": text}} for key, text in FIELDS.items()
                ]
            },
        }
        sinks.append(("open_telemetry", logs_service_pb2.OpenTelemetryAccessLogConfig(), config))
    return [_sink(*sink) for sink in sinks]


def _sink(name: str, settings: Any, config: dict[str, Any]) -> bytes:
    ended = {"log_type_filter": {"types": ["DownstreamEnd"]}}
    drawn = {
        "runtime_filter": {
            "runtime_key": LOG_SHARE_KEY,
            "percent_sampled": {"numerator": 0, "denominator": "MILLION"},
            "use_independent_randomness": True,
        }
    }
    message = {
        "name": f"envoy.access_loggers.{name}",
        "filter": {"and_filter": {"filters": [ended, drawn]}},
    }
    made = json_format.ParseDict(message, accesslog_pb2.AccessLog())
    # By "@type" the keys of an entry would be packed in another order in each process.
    made.typed_config.Pack(json_format.ParseDict(config, settings), deterministic=True)
    return made.SerializeToString(deterministic=True)  # type: ignore[no-any-return]  # untyped library


def tracing(spec: ListenerSpec) -> bytes | None:
    """Return the serialized ``Tracing`` of a listener; ``None`` = it traces nothing."""
    if spec.tracing is None:
        return None
    message = {
        # The share of the others is a runtime value.
        "client_sampling": {"value": 100},
        "random_sampling": {"value": 0},
        "overall_sampling": {"value": 100},
        "provider": {
            "name": "envoy.tracers.opentelemetry",
            "typed_config": {
                "@type": f"{_TYPES}config.trace.v3.OpenTelemetryConfig",
                "grpc_service": _grpc(TRACE_COLLECTOR_CLUSTER),
                "service_name": spec.tracing.service,
            },
        },
    }
    manager = http_connection_manager_pb2.HttpConnectionManager
    return _serialized(message, manager.Tracing())


def shares(spec: ListenerSpec) -> dict[str, Any]:
    """Return the runtime values of a listener's log and tracing.

    Envoy reads that of a log as a number of the filter's denominator, and that of tracing as a
    ``FractionalPercent``; a plain number would be whole percents there.
    """
    found: dict[str, Any] = {}
    if spec.access_log is not None:
        found[LOG_SHARE_KEY] = float(fraction(spec.access_log.percent).numerator)
    if spec.tracing is not None:
        numerator = fraction(spec.tracing.percent).numerator
        found[TRACE_SHARE_KEY] = {"numerator": numerator, "denominator": "MILLION"}
    return found


def collector_clusters(spec: ListenerSpec) -> dict[str, bytes]:
    """Return the serialized ``Cluster`` of each collector by name."""
    found = {}
    if spec.access_log is not None and spec.access_log.otlp is not None:
        found[LOG_COLLECTOR_CLUSTER] = spec.access_log.otlp
    if spec.tracing is not None:
        found[TRACE_COLLECTOR_CLUSTER] = spec.tracing.otlp
    return {name: _cluster(name, address) for name, address in found.items()}


def _cluster(name: str, address: str) -> bytes:
    named = split_name_port(address)
    host, port = named or split_host_port(address)
    endpoint = {"address": {"socket_address": {"address": host, "port_value": port}}}
    message = {
        "name": name,
        "type": "STATIC" if named is None else "STRICT_DNS",
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": endpoint}]}],
        },
        "typed_extension_protocol_options": {
            _UPSTREAM_OPTIONS: {
                "@type": f"type.googleapis.com/{_UPSTREAM_OPTIONS}",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
    }
    return _serialized(message, cluster_pb2.Cluster())


def _grpc(cluster: str) -> dict[str, Any]:
    return {"envoy_grpc": {"cluster_name": cluster}, "timeout": "1s"}


def _serialized(message: dict[str, Any], into: Any) -> bytes:
    parsed = json_format.ParseDict(message, into)
    return parsed.SerializeToString(deterministic=True)  # type: ignore[no-any-return]  # untyped library
