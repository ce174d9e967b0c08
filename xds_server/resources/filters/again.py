"""Filters that take a request on a hung replica through all filters again, to another replica.

Nothing in Envoy 1.40 ends one attempt of a request from outside (``docs/explanation/retries.md``
lists what was tried), but the picker can end the request while it runs, by an answer of its own.
Rules:

1. An answer of the picker with ``AGAIN_HEADER`` is not sent: Envoy resets the attempt, makes a new
   request out of the headers and the body that it has kept for retries, and takes that through the
   filters from the first one on. It does so once for each request.
2. Envoy makes a `GET` without a length of it. The first filter makes the request again what it was,
   without what picker and Envoy have added, and marks it with ``AGAIN_HEADER``. Deadlines of its
   headers are what is left of them (``UNTIL_HEADER``).
3. If the body is not as long as its declared length, the first filter answers 503 itself.
4. Replicas cannot ask for this: the routes remove the header from their answers.
5. The name in ``:authority`` is lost, so a listener with several hosts does not do this.

Source: ``envoy/extensions/http/custom_response/redirect_policy/v3/redirect_policy.proto``; and
``RedirectPolicy::encodeHeaders`` of ``redirect_policy.cc``, which sets method and length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.custom_response.v3 import custom_response_pb2
from envoy.extensions.filters.http.lua.v3 import lua_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)
from envoy.extensions.http.custom_response.redirect_policy.v3 import redirect_policy_pb2
from envoy.type.matcher.v3 import http_inputs_pb2

from tidegate_api.names import (
    AGAIN_HEADER,
    REASON_HEADER,
    STRIPPED_HEADERS,
    TIMEOUT_HEADER,
    UNTIL_HEADER,
)
from xds_server.resources.filters.wrapped import Skip, wrapped

if TYPE_CHECKING:
    from tidegate_api.pools import HungMode
    from xds_server.fleet.model.fleet import Fleet, PoolSpec

_RESTORE: Final = "tidegate.again"
_REDIRECT: Final = "envoy.filters.http.custom_response"
_HOST: Final = "tidegate"
"""``:authority`` of a request that is taken through the filters again."""

_OTHERS: Final = ", ".join(f'"{name}"' for name in STRIPPED_HEADERS if name != AGAIN_HEADER)

_SCRIPT: Final = f"""
local added = {{{_OTHERS}}}

function envoy_on_request(handle)
  local body = handle:body()
  local headers = handle:headers()
  local method, length = string.match(headers:get("{AGAIN_HEADER}") or "", "^(%u+) (%d*)")
  local til = tonumber(headers:get("{UNTIL_HEADER}") or "")
  if til ~= nil then
    local left = math.min(math.max(til - handle:timestamp(), 1), 99999999)
    left = string.format("%d", left)
    if headers:get("{TIMEOUT_HEADER}") ~= nil then headers:replace("{TIMEOUT_HEADER}", left) end
    if headers:get("grpc-timeout") ~= nil then headers:replace("grpc-timeout", left .. "m") end
  end
  for _, name in ipairs(added) do headers:remove(name) end
  headers:replace("{AGAIN_HEADER}", "1")
  if method ~= nil then headers:replace(":method", method) end
  local size = 0
  if body ~= nil then size = body:length() end
  if (tonumber(length) or size) ~= size then
    handle:respond(
      {{[":status"] = "503", ["content-type"] = "application/json", ["retry-after"] = "1",
        ["{REASON_HEADER}"] = "hung-replica"}},
      '{{"error":"the replica that had this request gives no sign of life"}}')
    return
  end
  if length ~= nil and length ~= "" then headers:replace("content-length", length) end
  handle:clearRouteCache()
end
"""


def hung_requests(fleet: Fleet, pool: PoolSpec) -> HungMode:
    """Return what becomes of a pool's requests on hung replicas.

    A second pass would miss a token that is not forwarded, or the host by which pools are told
    apart; such requests wait.
    """
    spec, wanted = fleet.listener, pool.routing.hung_requests
    hosts = spec.hosts or any(each.hosts for each in spec.further)
    hidden = pool.jwt is not None and not all(provider.forward for provider in spec.jwt)
    return "wait" if wanted == "move" and (hosts or hidden) else wanted


def restore_filter() -> bytes:
    """Return the serialized first filter; all requests but those that come again skip it."""
    lua = lua_pb2.Lua()
    lua.default_source_code.inline_string = _SCRIPT
    return wrapped(_RESTORE, lua, (Skip(AGAIN_HEADER, unless=True),), disabled=False)


def again_filter() -> bytes:
    """Return the serialized filter that makes a new request where the picker says so."""
    policy = redirect_policy_pb2.RedirectPolicy()
    policy.redirect_action.host_redirect = _HOST
    policy.status_code.value = 200  # else a good answer would have the status of the picker's
    kept = policy.request_headers_to_add.add(
        append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    )
    kept.header.key = AGAIN_HEADER
    kept.header.value = "%REQ(:METHOD)% %REQ(content-length)%"
    config = custom_response_pb2.CustomResponse()
    one = config.custom_response_matcher.matcher_list.matchers.add()
    single = one.predicate.single_predicate
    single.input.name = AGAIN_HEADER
    single.input.typed_config.Pack(
        http_inputs_pb2.HttpResponseHeaderMatchInput(header_name=AGAIN_HEADER)
    )
    single.value_match.exact = "1"
    one.on_match.action.name = "again"
    one.on_match.action.typed_config.Pack(policy, deterministic=True)
    message = http_connection_manager_pb2.HttpFilter(name=_REDIRECT)
    message.typed_config.Pack(config, deterministic=True)
    return message.SerializeToString(deterministic=True)  # type: ignore[no-any-return]  # untyped library


def only_pickers(config: Any) -> None:
    """Remove the header from replicas' answers on all routes of a ``RouteConfiguration``."""
    config.response_headers_to_remove.append(AGAIN_HEADER)
