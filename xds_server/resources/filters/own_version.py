"""The version of a variant's model, written into paths that name none (an upstream filter).

Rules:

1. A variant with ``model_version`` is answered by this version: of a request over HTTP that names a
   model and no version the path gets ``/versions/V``. A path with a version stays as it is, and so
   do paths that name no model.
2. The filter belongs to the variant's cluster. It sees each attempt, whatever route or draw led to
   it, with or without a pick, and also the copies that go to a shadow variant.
3. A cluster with upstream filters of its own does not use those of the router, so it lists these
   too.

Source: ``envoy/extensions/upstreams/http/v3/http_protocol_options.proto``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from envoy_data_plane.envoy.config.core.v3 import DataSource
from envoy_data_plane.envoy.extensions.filters.http.lua.v3 import Lua
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.google.protobuf import Any as PackedAny

from xds_server.resources.reads import upstream_filters

if TYPE_CHECKING:
    from tidegate_api.names import Protocol
    from xds_server.fleet.model.fleet import VariantSpec

_NAME: Final = "tidegate.version"
_SCRIPT: Final = """
function envoy_on_request(handle)
  local headers = handle:headers()
  local model, rest = string.match(headers:get(":path"), "^(/v2/models/[^/?]+)(.*)$")
  if model and string.sub(rest, 1, 10) ~= "/versions/" then
    headers:replace(":path", model .. "/versions/@VERSION@" .. rest)
  end
end
"""


def cluster_filters(variant: VariantSpec, protocol: Protocol) -> list[HttpFilter]:
    """Return the upstream filters of a variant's cluster; none = it uses those of the router."""
    if variant.model_version is None or protocol != "http":
        return []
    script = _SCRIPT.replace("@VERSION@", variant.model_version)
    lua = Lua(default_source_code=DataSource(inline_string=script))
    return [HttpFilter(name=_NAME, typed_config=PackedAny.pack(lua)), *upstream_filters()]
