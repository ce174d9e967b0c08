"""A filter by which Envoy reads token counts at the end of streamed answers.

Rules:

1. It is disabled in the listener, and routes enable it: those of pools with `telemetry.usage`, and
   *unnamed* routes if any pool asks, because the pool is not known when Envoy makes its filters.
2. It reads server-sent events one by one and holds back none of them. An event above ``MAX_EVENT``
   is skipped. What it finds is in the metadata of the log entry; the last event that tells counts.
3. Answers that are no event streams are not read: `json_to_metadata` holds them back, and on Envoy
   1.40 it answered 500 for one of 300 kB where `listener.buffer_bytes` was 128 KiB.

Envoy calls this filter work in progress: it is not covered by its threat model.
Source: ``envoy/extensions/filters/http/sse_to_metadata/v3/sse_to_metadata.proto``; since 1.38.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from envoy.config.route.v3 import route_components_pb2
from envoy_data_plane.envoy.extensions.content_parsers.json.v3 import (
    JsonContentParser,
    JsonContentParserRuleConfig,
)
from envoy_data_plane.envoy.extensions.filters.http.json_to_metadata.v3 import (
    JsonToMetadataKeyValuePair,
    JsonToMetadataRule,
    JsonToMetadataSelector,
    JsonToMetadataValueType,
)
from envoy_data_plane.envoy.extensions.filters.http.sse_to_metadata.v3 import (
    SseToMetadata,
    SseToMetadataProcessingRules,
)
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.google.protobuf import Any as PackedAny

from tidegate_api.names import (
    UNNAMED_ROUTE_PREFIX,
    USAGE_FILTER,
    USAGE_NAMESPACE,
    parse_cluster,
)
from xds_server.resources.sources import extension

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xds_server.fleet.model.fleet import Fleet

USAGE_KEYS: Final = {
    "prompt": ("usage", "prompt_tokens"),
    "cached": ("usage", "prompt_tokens_details", "cached_tokens"),
    "output": ("usage", "completion_tokens"),
    "model": ("model",),
}
"""Keys of the metadata, and where OpenAI's events have their values."""

MAX_EVENT: Final = 65_536
"""Largest event that is read, bytes."""


def usage_filter() -> HttpFilter:
    """Return the listener's filter."""
    return HttpFilter(name=USAGE_FILTER, typed_config=PackedAny.pack(_settings()), disabled=True)


def read_usage(routes: Iterable[Any], fleet: Fleet) -> None:
    """Let the routes of pools that ask for it read token counts; changes them in place."""
    asking = {pool.name for pool in fleet.pools if pool.telemetry.usage}
    if not asking:
        return
    enabled = route_components_pb2.FilterConfig()
    enabled.config.SetInParent()
    for route in routes:
        if not route.HasField("route"):
            continue
        clusters = route.route.weighted_clusters.clusters
        ref = parse_cluster(route.route.cluster or clusters[0].name)
        if (ref is not None and ref.pool in asking) or route.name.startswith(UNNAMED_ROUTE_PREFIX):
            route.typed_per_filter_config[USAGE_FILTER].Pack(enabled, deterministic=True)


def _settings() -> SseToMetadata:
    rules = [_rule(key, path) for key, path in USAGE_KEYS.items()]
    return SseToMetadata(
        response_rules=SseToMetadataProcessingRules(
            content_parser=extension("envoy.content_parsers.json", JsonContentParser(rules=rules)),
            max_event_size=MAX_EVENT,
        )
    )


def _rule(key: str, path: tuple[str, ...]) -> JsonContentParserRuleConfig:
    kind = JsonToMetadataValueType.STRING if key == "model" else JsonToMetadataValueType.NUMBER
    return JsonContentParserRuleConfig(
        rule=JsonToMetadataRule(
            selectors=[JsonToMetadataSelector(key=each) for each in path],
            on_present=JsonToMetadataKeyValuePair(
                metadata_namespace=USAGE_NAMESPACE, key=key, type=kind
            ),
        )
    )
