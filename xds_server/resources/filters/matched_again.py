"""Filters that match the route again behind the picker, by state that clients cannot set.

1. *Moved*: the picker chose another pool or variant, and asks ext_proc to clear the cached route.
   Of a body above the limit of `peek` Envoy 1.40 forwards the first part *before* it does so: the
   request went to the cluster of its first route, where no endpoint has the picked address. This
   filter clears the route in time. It does nothing for requests that the picker did not move.
2. *Unpicked*: no picker chose a replica. The filter keeps the cluster to which the request goes,
   and the routes *without-pick* lead there by that state, in Envoy's priority *high*, which has
   breakers of its own (``runtime``). So what a picker held when it died does not fall on the
   replicas together. Requests with a pick do not count there, nor are they refused for it.

Source: ``envoy/extensions/filters/http/set_filter_state/v3/set_filter_state.proto``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from envoy.extensions.filters.http.set_filter_state.v3 import set_filter_state_pb2
from envoy_data_plane.envoy.config.core.v3 import DataSource, SubstitutionFormatString
from envoy_data_plane.envoy.extensions.filters.common.set_filter_state.v3 import FilterStateValue
from envoy_data_plane.envoy.extensions.filters.http.set_filter_state.v3 import Config

from tidegate_api.names import CONTROL_POOL_HEADER, DESTINATION_HEADER
from xds_server.resources.filters.wrapped import Skip, enable, wrapped

if TYPE_CHECKING:
    from tidegate_api.names import ClusterRef

_MOVED: Final = "tidegate.picked"
_NOT_MOVED: Final = (Skip(CONTROL_POOL_HEADER, unless=True),)
_UNPICKED: Final = "tidegate.late.bound"
_PICKED: Final = (Skip(DESTINATION_HEADER),)


def moved_filter() -> bytes:
    """Return the serialized ``HttpFilter`` of moved requests."""
    return _filter(_MOVED, "moved", _NOT_MOVED)


def unpicked_filter() -> bytes:
    """Return the serialized ``HttpFilter`` of requests without a pick."""
    return _filter(_UNPICKED, "%UPSTREAM_CLUSTER_RAW%", _PICKED)


def follow_picker(route: Any) -> None:
    """Let requests that arrive on a route follow the picker's choice of pool and variant."""
    enable(route, (_MOVED,), _NOT_MOVED)


def bound_unpicked(route: Any) -> None:
    """Let requests that arrive on a route, and get no pick, go on by the bounded routes."""
    enable(route, (_UNPICKED,), _PICKED)


def bound_nothing(route: Any) -> None:
    """Undo ``bound_unpicked``, of a route that asks no picker."""
    route.typed_per_filter_config.pop(_UNPICKED, None)


def match_unpicked(match: Any, ref: ClusterRef) -> None:
    """Let a ``RouteMatch`` match the requests without a pick that go to a cluster."""
    state = match.filter_state.add(key=_UNPICKED)
    state.string_match.exact = str(ref)


def _filter(name: str, value: str, skips: tuple[Skip, ...]) -> bytes:
    # Only one of the two libraries knows `clear_route_cache`; the other one keeps what it does not
    # know.
    config = Config(
        clear_route_cache=True,
        on_request_headers=[
            FilterStateValue(
                object_key=name,
                factory_key="envoy.string",
                format_string=SubstitutionFormatString(
                    text_format_source=DataSource(inline_string=value)
                ),
            )
        ],
    )
    return wrapped(name, set_filter_state_pb2.Config.FromString(bytes(config)), skips)
