"""What Envoy answers about models in paths that no pool serves, in Triton's words.

The filter is disabled in the listener; the route of such paths enables it. Envoy's own answers
cannot name the model, which only the path has.

Source: answers of Triton 2.51. It takes the name as it stands in the path, not decoded.
"""

from __future__ import annotations

from typing import Any, Final

from envoy.config.route.v3 import route_components_pb2
from envoy_data_plane.envoy.config.core.v3 import DataSource
from envoy_data_plane.envoy.extensions.filters.http.lua.v3 import Lua
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.google.protobuf import Any as PackedAny

from tidegate_api.names import REASON_HEADER

_NAME: Final = "tidegate.unknown.model"
_SCRIPT: Final = r"""
function envoy_on_request(handle)
  local path = (handle:headers():get(":path") or ""):gsub("%?.*", "")
  local model, rest = path:match("^/v2/models/([^/]+)(.*)$")
  if model == nil or (model == "stats" and rest == "") then return end  -- statistics of all models
  local verb = rest:gsub("^/versions/%d+", ""):sub(2)
  local name = model:gsub('[%c"\\\128-\255]', function(byte)
    return string.format("\\u%04x", byte:byte())
  end)
  local status, text = "404", "Request for unknown model: '" .. name .. "' is not found"
  if verb == "ready" then
    status, text = "400", "Model version not ready"
  elseif verb == "stats" then
    status, text = "400", "requested model '" .. name .. "' is not available"
  end
  local headers = {[":status"] = status, ["content-type"] = "application/json"}
  headers["@REASON@"] = "unknown-model"
  handle:respond(headers, '{"error":"' .. text .. '"}')
end
"""


def unknown_model_filter() -> HttpFilter:
    """Return the listener's filter."""
    script = _SCRIPT.replace("@REASON@", REASON_HEADER)
    lua = Lua(default_source_code=DataSource(inline_string=script))
    return HttpFilter(name=_NAME, typed_config=PackedAny.pack(lua), disabled=True)


def answer_unknown_model(route: Any) -> None:
    """Let a route answer about the model in its path."""
    enabled = route_components_pb2.FilterConfig()
    enabled.config.SetInParent()
    route.typed_per_filter_config[_NAME].Pack(enabled, deterministic=True)
