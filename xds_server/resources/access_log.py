"""Envoy's access log service: each entry goes to the picker that made the pick.

The listener has a fixed number of log sinks, *slots*, so that it does not change when pickers come
and go. Rules:

1. A slot has a cluster, with the address of at most one picker in its assignment, and a sink with a
   filter on the slot's number, which each pick carries.
2. Of requests without a pick those are sent to any picker, to be counted, that Envoy answers by
   itself: no route, no healthy replica, and so on.
3. Pickers learn their slots with the pools. An address keeps its slot while others come; one that
   had to give way to another may change it when that one leaves.
4. There are eight slots, and eight more for every further eight pickers; workers count singly.

The router adds an entry for each failed attempt (``upstream_log``). On Envoy 1.40 such entries have
no metadata, so a request header with the same content tells them apart, and they carry it. The
replica gets that header too: a filter that removed it would remove it from the log as well. Good
attempts write no entry; that of the request describes its last attempt.

Each entry of a request has a tag with the time of the answer's first body byte: servers on uvicorn,
such as vLLM, send headers at once and the first token after the prefill, so the field
``time_to_first_upstream_rx_byte``, which is the time of the headers, says nothing about them. The
tag has the request's age as well, which intermediate entries of Envoy 1.40 have nowhere else.
Another tag has in one line all that pickers read of a request that ended well: splitting it takes a
third of the time that the entry's nested messages take.

Source: ``envoy/extensions/access_loggers/grpc/v3/als.proto``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from envoy_data_plane.envoy.config.accesslog.v3 import (
    AccessLog,
    AccessLogFilter,
    AndFilter,
    ComparisonFilter,
    ComparisonFilterOp,
    GrpcStatusFilter,
    GrpcStatusFilterStatus,
    HeaderFilter,
    MetadataFilter,
    OrFilter,
    ResponseFlagFilter,
    StatusCodeFilter,
)
from envoy_data_plane.envoy.config.core.v3 import (
    ApiVersion,
    GrpcService,
    GrpcServiceEnvoyGrpc,
    RuntimeUInt32,
)
from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher
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
from envoy_data_plane.envoy.type.tracing.v3 import CustomTag
from envoy_data_plane.google.protobuf import Any as PackedAny

from tidegate_api.names import (
    FIRST_BODY_TAG,
    LOG_CLUSTER_PREFIX,
    LOG_SLOT_KEY,
    PICKER_CLUSTER,
    POOL_KEY,
    SUMMARY_TAG,
    TICKET_HEADER,
    TIDEGATE_NAMESPACE,
    USAGE_NAMESPACE,
)
from xds_server.fleet.view import log_slots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FLUSH: Final = timedelta(seconds=0.05)
"""Longest time for which Envoy buffers an entry; it also flushes at 16 KiB."""

RUNNING: Final = timedelta(seconds=1)
"""Interval of the intermediate entries of a running request."""

ATTEMPTS_LOG: Final = "tidegate-attempts"
"""Name of the log of failed attempts."""

UNPICKED_LOG: Final = "tidegate-unpicked"
"""Name of the log of requests without a pick."""

_REQUESTS_LOG: Final = "tidegate"
_OWN_FLAGS: Final = ("UH", "UO", "NR", "NC", "RL", "OM", "UT", "DT", "UF", "UC", "UR", "UPE")
"""Envoy's own answers, by their response flags."""
_GRPC_STATUS: Final = "grpc-status"
_FIRST_BODY: Final = "%COMMON_DURATION(US_TX_BEG:US_RX_BODY_BEG:us)%;%DURATION%"
_OURS: Final = f"%DYNAMIC_METADATA({TIDEGATE_NAMESPACE}:{{}})%"
_SINCE_START: Final = "%COMMON_DURATION(DS_RX_BEG:{}:us)%"
_SUMMARY: Final = ";".join(
    (
        # What a good request of one attempt has alike: `SUMMARY_GOOD`.
        "%ACCESS_LOG_TYPE%",
        "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
        "%RESPONSE_FLAGS%",
        _OURS.format("unreadable"),
        _OURS.format(POOL_KEY),
        # What differs.
        _OURS.format("picker"),
        _OURS.format("ticket"),
        "%UPSTREAM_CLUSTER_RAW%",
        "%UPSTREAM_REMOTE_ADDRESS%",
        "%RESPONSE_CODE%",
        "%BYTES_SENT%",
        "%START_TIME(%s%3f)%",
        _SINCE_START.format("DS_TX_END"),
        "%COMMON_DURATION(US_TX_BEG:US_RX_BODY_BEG:us)%",
        _SINCE_START.format("US_RX_BODY_BEG"),
        _SINCE_START.format("US_RX_END"),
        # From the replica, so last: no part before these moves, whatever they contain.
        f"%TRAILER({_GRPC_STATUS})%",
        f"%RESP({_GRPC_STATUS})%",
        *(
            f"%DYNAMIC_METADATA({USAGE_NAMESPACE}:{part})%"
            for part in ("prompt", "cached", "output", "model")
        ),
    )
)


def log_clusters(addresses: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Return the clusters of the log sinks: name -> the addresses in it, one or none."""
    return {
        f"{LOG_CLUSTER_PREFIX}{slot}": (address,) if address else ()
        for slot, address in enumerate(log_slots(addresses))
    }


def access_logs(slots: int) -> list[AccessLog]:
    """Return the listener's log sinks."""
    return [*map(_sink, range(slots)), _unpicked()]


def attempt_logs(slots: int) -> list[AccessLog]:
    """Return the router's log sinks, for attempts that failed and may be followed by others."""
    return [_attempts(slot) for slot in range(slots)]


def _attempts(slot: int) -> AccessLog:
    ours = HeaderMatcher(name=TICKET_HEADER, string_match=StringMatcher(suffix=f";{slot}"))
    # A connection that failed, broke or timed out has a flag; the rest are the answers that the
    # routes' retry policy covers.
    failed = [
        AccessLogFilter(response_flag_filter=ResponseFlagFilter()),
        _answered(503, "tidegate.retried_status"),
        _answered(404, "tidegate.missing_status"),
        AccessLogFilter(
            grpc_status_filter=GrpcStatusFilter(
                statuses=[GrpcStatusFilterStatus.UNAVAILABLE, GrpcStatusFilterStatus.NOT_FOUND]
            )
        ),
    ]
    return AccessLog(
        name="envoy.access_loggers.http_grpc",
        filter=AccessLogFilter(
            and_filter=AndFilter(
                filters=[
                    AccessLogFilter(header_filter=HeaderFilter(header=ours)),
                    AccessLogFilter(or_filter=OrFilter(filters=failed)),
                ]
            )
        ),
        # Not buffered: a lease or a suspicion should not wait for the end of the request.
        typed_config=PackedAny.pack(
            _config(
                f"{LOG_CLUSTER_PREFIX}{slot}",
                ATTEMPTS_LOG,
                buffer_bytes=0,
                request_headers=[TICKET_HEADER],
            )
        ),
    )


def _unpicked() -> AccessLog:
    # Matches only where there is no slot.
    matcher = MetadataMatcher(
        filter=TIDEGATE_NAMESPACE,
        path=[MetadataMatcherPathSegment(key=LOG_SLOT_KEY)],
        value=ValueMatcher(string_match=StringMatcher(exact="none")),
    )
    filters = [
        AccessLogFilter(
            metadata_filter=MetadataFilter(matcher=matcher, match_if_key_not_found=True)
        ),
        AccessLogFilter(response_flag_filter=ResponseFlagFilter(flags=[*_OWN_FLAGS])),
    ]
    return AccessLog(
        name="envoy.access_loggers.http_grpc",
        filter=AccessLogFilter(and_filter=AndFilter(filters=filters)),
        typed_config=PackedAny.pack(_config(PICKER_CLUSTER, UNPICKED_LOG)),
    )


def _answered(status: int, runtime_key: str) -> AccessLogFilter:
    return AccessLogFilter(
        status_code_filter=StatusCodeFilter(
            comparison=ComparisonFilter(
                op=ComparisonFilterOp.EQ,
                value=RuntimeUInt32(default_value=status, runtime_key=runtime_key),
            )
        )
    )


def _config(
    cluster: str,
    name: str,
    *,
    buffer_bytes: int | None = None,
    request_headers: Sequence[str] = (),
    tags: Sequence[CustomTag] = (),
) -> HttpGrpcAccessLogConfig:
    return HttpGrpcAccessLogConfig(
        common_config=CommonGrpcAccessLogConfig(
            log_name=name,
            transport_api_version=ApiVersion.V3,
            # The default authority is the cluster's name, whose slash is invalid there.
            grpc_service=GrpcService(
                envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=cluster, authority=PICKER_CLUSTER)
            ),
            buffer_flush_interval=FLUSH,
            buffer_size_bytes=buffer_bytes,
            custom_tags=[*tags],
        ),
        additional_request_headers_to_log=[*request_headers],
        additional_response_headers_to_log=[_GRPC_STATUS],
        additional_response_trailers_to_log=[_GRPC_STATUS],
    )


def _sink(slot: int) -> AccessLog:
    matcher = MetadataMatcher(
        filter=TIDEGATE_NAMESPACE,
        path=[MetadataMatcherPathSegment(key=LOG_SLOT_KEY)],
        value=ValueMatcher(string_match=StringMatcher(exact=str(slot))),
    )
    return AccessLog(
        name="envoy.access_loggers.http_grpc",
        filter=AccessLogFilter(
            metadata_filter=MetadataFilter(matcher=matcher, match_if_key_not_found=False)
        ),
        typed_config=PackedAny.pack(
            _config(
                f"{LOG_CLUSTER_PREFIX}{slot}",
                _REQUESTS_LOG,
                tags=[
                    CustomTag(tag=FIRST_BODY_TAG, value=_FIRST_BODY),
                    CustomTag(tag=SUMMARY_TAG, value=_SUMMARY),
                ],
            )
        ),
    )
