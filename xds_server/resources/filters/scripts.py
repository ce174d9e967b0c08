"""Lua of the filters that choose a pool by a body's model.

The filters ahead of these put the model into dynamic metadata, see ``body_model``. A script runs
only for requests that have no pick, or whose body Envoy reads before it asks the picker.
"""

from __future__ import annotations

from typing import Final

from tidegate_api.names import (
    ASKED_HEADER,
    CONTROL_MODEL_HEADER,
    MODEL_HEADER,
    REASON_HEADER,
    UNPICKED_HEADER,
    UNSERVED_ROUTE_PREFIX,
    WAITED_HEADER,
)
from tidegate_api.paths import OPENAI_ENDINGS, RESPONSES_ENDING, SCORE_ENDINGS

NAMESPACE: Final = "tidegate.body"
"""Metadata of these filters: ``model``, ``missing`` or ``error`` of a JSON body; whether the model
was ``read``, and whether the request is ``unpicked``."""

GRPC_NAMESPACE: Final = "envoy.filters.http.grpc_field_extraction"
"""Envoy writes the fields of a gRPC message here, each as a list of its values."""

NO_PICKER: Final = (
    "only the body names the pool of this request, no picker answered, and the gateway alone cannot"
    " read it: it is compressed, not valid, or too large; try again, or name the model in the"
    f" header {MODEL_HEADER}"
)
UNREADABLE: Final = (
    "only the message names the model of this call, and the gateway cannot read it: it is empty,"
    f" compressed, not valid, or too large; name the model in the metadata {MODEL_HEADER},"
    " or send the message uncompressed and smaller"
)

_OPENAI_ENDINGS: Final = (*OPENAI_ENDINGS, RESPONSES_ENDING, *SCORE_ENDINGS)

MAX_NAME_BYTES: Final = 1024
"""Longest name that is looked up: 256 characters, as pickers take them, of four bytes."""

_MARK: Final = """
function envoy_on_request(handle)
  handle:headers():replace("@UNPICKED@", "1")
  handle:streamInfo():dynamicMetadata():set("@NAMESPACE@", "unpicked", true)
  handle:clearRouteCache()
end
"""

_REFUSE: Final = """
local function refuse(handle, status, grpc_status, reason, text)
  local request = handle:headers()
  local headers = {[":status"] = status, ["@REASON@"] = reason}
  if status == "503" then headers["retry-after"] = "1" end
  if (request:get("content-type") or ""):sub(1, 16) == "application/grpc" then
    headers["grpc-status"] = grpc_status
    handle:respond(headers, text)
    return
  end
  headers["content-type"] = "application/json"
  local path = (request:get(":path") or ""):gsub("%?.*", "")
  local body = '{"error":"' .. text .. '"}'
  local openai = path == "/score" or path == "/rerank" or path == "/generate"
  for _, ending in ipairs({@OPENAI_ENDINGS@}) do
    openai = openai or path:sub(-#ending) == ending
  end
  if path:find("/v1/messages$") then
    local kinds = {["404"] = "not_found_error", ["503"] = "overloaded_error"}
    body = '{"type":"error","error":{"type":"' .. (kinds[status] or "invalid_request_error")
      .. '","message":"' .. text .. '"}}'
  elseif openai then
    local kind = status == "503" and "server_error" or "invalid_request_error"
    body = '{"error":{"message":"' .. text .. '","type":"' .. kind
      .. '","param":null,"code":"' .. reason .. '"}}'
  end
  handle:respond(headers, body)
end

local function unserved(handle, name)
  local text = "no pool serves the model that the body names"
  local grpc = (handle:headers():get("content-type") or ""):sub(1, 16) == "application/grpc"
  if grpc and #name <= @MAX_NAME_BYTES@ then  -- as Triton says it
    text = "Request for unknown model: '" .. name .. "' is not found"
  end
  refuse(handle, "404", "5", "unknown-model", text)
end
"""

_READ: Final = """
function envoy_on_request(handle)
  local data = handle:streamInfo():dynamicMetadata()
  data:set("@NAMESPACE@", "read", true)
  local name
  for _, values in pairs(data:get("@GRPC_NAMESPACE@") or {}) do name = values[#values] end
  local json = data:get("@NAMESPACE@")
  if json["model"] ~= nil then name = json["model"] end
  if json["error"] or (name ~= nil and type(name) ~= "string") then
    unreadable(handle)
    return
  end
  if name == nil or name == "" then return end
  if #name > @MAX_NAME_BYTES@ or name:find("%c") then
    unserved(handle, name)
    return
  end
  handle:headers():replace("@MODEL@", name)
  handle:clearRouteCache()
  handle:metadata()  -- matches the route again
  found(handle, name)
  if handle:streamInfo():routeName():find("@UNSERVED@", 1, true) == 1 then
    unserved(handle, name)
  end
end

function envoy_on_response(handle)
  local headers = handle:headers()
  local status = headers:get("grpc-status")
  if status ~= "3" and status ~= "9" then return end
  local data = handle:streamInfo():dynamicMetadata():get("@NAMESPACE@") or {}
  if not data["read"] then rejected(headers, data) end
end
"""
"""``envoy_on_response`` rewrites what Envoy answers where it cannot read a gRPC message: there the
script has not run for the request, so ``read`` is not set."""

_BEFORE: Final = """
local function unreadable(handle) end

local function found(handle, name) handle:headers():replace("@PICKER_MODEL@", name) end

local function rejected(headers, data)
  headers:replace("grpc-status", "3")
  headers:replace("grpc-message", "@UNREADABLE@")
  headers:replace("@REASON@", "bad-request")
end
"""
"""What Envoy cannot read of a JSON body is left to the picker, which is told the model that Envoy
did read."""

_WITHOUT: Final = """
local function unreadable(handle) refuse(handle, "503", "14", "no-picker", "@NO_PICKER@") end

local function found(handle, name) end

local function rejected(headers, data)
  if not data["unpicked"] then return end  -- the picker's own refusal
  headers:replace("grpc-status", "14")
  headers:replace("grpc-message", "@NO_PICKER@")
  headers:replace("@REASON@", "no-picker")
  headers:replace("retry-after", "1")
end
"""


LATE_MS: Final = 250
"""Milliseconds after which a request without a pick has waited for a picker that was late."""

LATE: Final = (
    "no picker answered in time, and the gateway alone forwards no upload that has begun; try again"
)

_HOLD: Final = """
function envoy_on_request(handle)
  local headers = handle:headers()
  local asked = tonumber(headers:get("@ASKED@") or "") or 0
  local waited = (tonumber(headers:get("@WAITED@") or "") or 0) - asked
  headers:remove("@ASKED@")
  headers:remove("@WAITED@")
  local limit = handle:metadata():get("hold") or 0
  local length = tonumber(headers:get("content-length") or "")
  if length == nil then
    if waited >= @LATE_MS@ then handle:body() end
  elseif length <= limit then
    handle:body()
  elseif waited >= @LATE_MS@ then
    refuse(handle, "503", "14", "late-upload", "@LATE@")
  end
end
"""
"""``body`` returns once the body is complete; Envoy answers 413 where it is above its limit."""


def _filled(text: str) -> str:
    words = {
        "UNPICKED": UNPICKED_HEADER,
        "NAMESPACE": NAMESPACE,
        "GRPC_NAMESPACE": GRPC_NAMESPACE,
        "REASON": REASON_HEADER,
        "MODEL": CONTROL_MODEL_HEADER,
        "PICKER_MODEL": MODEL_HEADER,
        "UNSERVED": UNSERVED_ROUTE_PREFIX,
        "MAX_NAME_BYTES": str(MAX_NAME_BYTES),
        "OPENAI_ENDINGS": ", ".join(f'"{each}"' for each in _OPENAI_ENDINGS),
        "NO_PICKER": NO_PICKER,
        "ASKED": ASKED_HEADER,
        "WAITED": WAITED_HEADER,
        "LATE_MS": str(LATE_MS),
        "LATE": LATE,
        "UNREADABLE": UNREADABLE,
    }
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text


MARK: Final = _filled(_MARK)
"""Moves a request without a pick to the route on which Envoy holds more of its body."""

HOLD: Final = _filled(_REFUSE + _HOLD)
"""Holds uploads without a pick until they are complete, or refuses them."""

ROUTE_BEFORE: Final = _filled(_REFUSE + _BEFORE + _READ)
"""Routes by the model before the picker is asked."""

ROUTE_WITHOUT: Final = _filled(_REFUSE + _WITHOUT + _READ)
"""Routes by the model where there is no pick; what cannot be read is refused with 503."""
