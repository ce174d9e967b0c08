"""A filter that matches the route again where the picker chose another pool or variant.

The picker asks ext_proc to clear the cached route. Of a body above the limit of `peek` Envoy 1.40
forwards the first part *before* it does so: the request went to the cluster of its first route,
where no endpoint has the picked address. This filter stands behind ext_proc and clears the route in
time. It does nothing for requests that the picker did not move.

Source: ``envoy/extensions/filters/http/set_filter_state/v3/set_filter_state.proto``.
"""

from __future__ import annotations

from typing import Any, Final

from envoy.extensions.filters.http.set_filter_state.v3 import set_filter_state_pb2
from envoy_data_plane.envoy.config.core.v3 import DataSource, SubstitutionFormatString
from envoy_data_plane.envoy.extensions.filters.common.set_filter_state.v3 import FilterStateValue
from envoy_data_plane.envoy.extensions.filters.http.set_filter_state.v3 import Config

from tidegate_api.names import CONTROL_POOL_HEADER
from xds_server.resources.filters.wrapped import Skip, enable, wrapped

_NAME: Final = "tidegate.picked"
_NOT_MOVED: Final = (Skip(CONTROL_POOL_HEADER, unless=True),)


def match_again() -> bytes:
    """Return the serialized ``HttpFilter``."""
    # Only one of the two libraries knows `clear_route_cache`; the other one keeps what it does not
    # know.
    config = Config(
        clear_route_cache=True,
        on_request_headers=[
            FilterStateValue(
                object_key=_NAME,
                factory_key="envoy.string",
                format_string=SubstitutionFormatString(
                    text_format_source=DataSource(inline_string="moved")
                ),
            )
        ],
    )
    return wrapped(_NAME, set_filter_state_pb2.Config.FromString(bytes(config)), _NOT_MOVED)


def follow_picker(route: Any) -> None:
    """Let requests that arrive on a route follow the picker's choice of pool and variant."""
    enable(route, (_NAME,), _NOT_MOVED)
