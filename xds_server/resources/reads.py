"""The bound on how many replicas read one request (an upstream filter of Envoy's router).

Envoy's retry policy has one count for all causes. This filter tells them apart, before each attempt
after the first:

1. An attempt was a *read* if the replica was sent bytes of the request and sent no headers of an
   answer back: it died, froze, or reset or refused the stream. A refused connection is no read, nor
   is an answer such as 503. Other bytes are no answer: HTTP/2 resets a stream and widens its window
   by frames of that stream.
2. Once as many further replicas have read the request as it may have (``retry_read`` of its pool,
   none for a sequence), the filter answers 503 itself, and no further replica is sent anything.
3. Envoy does not retry that answer: it carries ``OVERLOADED_HEADER``.
4. First attempts, which nearly all requests end with, do not pass through the filter.
5. An answer 404 or NOT_FOUND is repeated on each replica of the picker's list and no further: the
   filter marks that of the last one with ``LIMITED_HEADER``, where the picker has asked for the
   repeats (``MISSING_HEADER``). No other 404 is marked.
6. An answer 503 or UNAVAILABLE is repeated ``fallbacks`` times, once at least: the filter marks a
   further one likewise. A first attempt that was answered counts as one.

The byte counts of an upstream filter's stream include the earlier attempts, and its dynamic
metadata persists over them (checked on Envoy 1.40).

Source: ``envoy/extensions/filters/http/composite/v3/composite.proto``,
``envoy/extensions/filters/http/lua/v3/lua.proto``, ``source/common/router/retry_state_impl.cc``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation
from envoy_data_plane.envoy.config.core.v3 import (
    DataSource,
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
)
from envoy_data_plane.envoy.extensions.common.matching.v3 import ExtensionWithMatcher
from envoy_data_plane.envoy.extensions.filters.common.matcher.action.v3 import SkipFilter
from envoy_data_plane.envoy.extensions.filters.http.composite.v3 import (
    Composite,
    ExecuteFilterAction,
    FilterChainConfiguration,
)
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import (
    HeaderMutation as HeaderMutationFilter,
)
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import Mutations
from envoy_data_plane.envoy.extensions.filters.http.lua.v3 import Lua
from envoy_data_plane.envoy.extensions.filters.http.upstream_codec.v3 import UpstreamCodec
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.type.matcher.v3 import HttpRequestHeaderMatchInput
from envoy_data_plane.google.protobuf import Any as PackedAny
from envoy_data_plane.xds.core.v3 import TypedExtensionConfig as XdsExtension
from envoy_data_plane.xds.type.matcher.v3 import (
    Matcher,
    MatcherMatcherTree,
    MatcherMatcherTreeMatchMap,
    MatcherOnMatch,
)

from tidegate_api.names import (
    ATTEMPT_HEADER,
    DESTINATION_HEADER,
    LB_NAMESPACE,
    MISSING_HEADER,
    READS_HEADER,
    REASON_HEADER,
    REPEATABLE,
    REPEATABLE_HEADER,
    SENT_HEADER,
    SEQUENCE_HEADER,
)
from xds_server.resources.sources import extension

if TYPE_CHECKING:
    import betterproto2

SPENT_REASON: Final = "reads-spent"
"""Reason of the filter's own answer."""

OVERLOADED_HEADER: Final = "x-envoy-overloaded"
"""Envoy never retries an answer with this header."""

LIMITED_HEADER: Final = "x-envoy-ratelimited"
"""Envoy does not retry an answer with this header either, whatever its status."""

_LUA: Final = "envoy.filters.http.lua"
"""Name of the filter, and of a route's metadata that it reads."""

_READS_KEY: Final = "retry_read"
_DECLINES_KEY: Final = "declines"

_SCRIPT: Final = f"""
function envoy_on_request(handle)
  local headers = handle:headers()
  local sent, received = string.match(headers:get("{SENT_HEADER}") or "", "^(%d+) (%d+)$")
  headers:remove("{SENT_HEADER}")
  local known = handle:streamInfo():dynamicMetadata()
  local before = known:get("tidegate.attempts") or {{}}
  local reads = before.reads or 0
  sent, received = tonumber(sent) or 0, tonumber(received) or 0
  if sent > (before.sent or 0) and received == (before.received or 0) then reads = reads + 1 end
  local attempt = tonumber(headers:get("{ATTEMPT_HEADER}")) or 0
  if attempt == 2 and received > 0 then known:set("tidegate.attempts", "declines", 1) end
  local picks = (known:get("{LB_NAMESPACE}") or {{}})["{DESTINATION_HEADER}"] or ""
  local _, more = string.gsub(picks, ",", "")
  known:set("tidegate.attempts", "last", attempt > more)
  known:set("tidegate.attempts", "sent", sent)
  known:set("tidegate.attempts", "received", received)
  known:set("tidegate.attempts", "reads", reads)
  known:set("tidegate.attempts", "missing", headers:get("{MISSING_HEADER}") ~= nil)
  local further = handle:metadata():get("{_READS_KEY}") or 0
  if headers:get("{READS_HEADER}") or headers:get("{SEQUENCE_HEADER}") then further = 0 end
  if reads > further then
    handle:respond(
      {{[":status"] = "503", ["content-type"] = "application/json",
        ["{OVERLOADED_HEADER}"] = "true", ["{REASON_HEADER}"] = "{SPENT_REASON}"}},
      '{{"error":"the replicas that read this request broke off before they answered"}}')
  end
end

function envoy_on_response(handle)
  local headers, known = handle:headers(), handle:streamInfo():dynamicMetadata()
  local status, code = headers:get(":status"), headers:get("grpc-status")
  local attempts = known:get("tidegate.attempts") or {{}}
  local ends = false
  if status == "404" or code == "5" then
    ends = attempts.missing and attempts.last
  elseif status == "503" or code == "14" then
    local declines = (attempts.declines or 0) + 1
    known:set("tidegate.attempts", "declines", declines)
    ends = declines > (handle:metadata():get("{_DECLINES_KEY}") or 1)
  end
  if ends then headers:replace("{LIMITED_HEADER}", "true") end
end
"""


def upstream_filters() -> list[HttpFilter]:
    """Return the upstream filters of the router, the codec last."""
    bytes_so_far = HeaderMutationFilter(
        mutations=Mutations(
            request_mutations=[
                HeaderMutation(
                    append=HeaderValueOption(
                        header=HeaderValue(
                            key=SENT_HEADER,
                            value="%UPSTREAM_WIRE_BYTES_SENT% %UPSTREAM_HEADER_BYTES_RECEIVED%",
                        ),
                        append_action=(
                            HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD
                        ),
                    )
                )
            ]
        )
    )
    count = Lua(default_source_code=DataSource(inline_string=_SCRIPT))
    chain = FilterChainConfiguration(
        typed_config=[
            extension("envoy.filters.http.header_mutation", bytes_so_far),
            extension(_LUA, count),
        ]
    )
    retries_only = ExtensionWithMatcher(
        extension_config=extension("envoy.filters.http.composite", Composite()),
        xds_matcher=Matcher(
            matcher_tree=MatcherMatcherTree(
                input=_matched("attempt", HttpRequestHeaderMatchInput(header_name=ATTEMPT_HEADER)),
                exact_match_map=MatcherMatcherTreeMatchMap(
                    map={"1": MatcherOnMatch(action=_matched("first", SkipFilter()))}
                ),
            ),
            on_no_match=MatcherOnMatch(
                action=_matched("retry", ExecuteFilterAction(filter_chain=chain))
            ),
        ),
    )
    return [
        HttpFilter(name="tidegate.reads", typed_config=PackedAny.pack(retries_only)),
        HttpFilter(
            name="envoy.filters.http.upstream_codec", typed_config=PackedAny.pack(UpstreamCodec())
        ),
    ]


def repeat_known_ends(retry: Any) -> None:
    """Let a retry policy hold only for requests whose end is known.

    Envoy 1.40 sends a body twice if trailers end it, a picker was asked about it, and the request
    may be retried. Envoy decides that when the headers leave for a replica, by this header.
    """
    matcher = retry.retriable_request_headers.add(name=REPEATABLE_HEADER)
    matcher.string_match.exact = REPEATABLE


def allow_reads(route: Any, retry_read: int, declines: int) -> None:
    """Write into a route what further attempts its requests may have.

    Args:
        route: The route.
        retry_read: Further replicas that may read a request.
        declines: Answers 503 that are repeated.
    """
    fields = route.metadata.filter_metadata[_LUA].fields
    fields[_READS_KEY].number_value = retry_read
    fields[_DECLINES_KEY].number_value = declines


def _matched(name: str, config: betterproto2.Message) -> XdsExtension:
    return XdsExtension(name=name, typed_config=PackedAny.pack(config))
