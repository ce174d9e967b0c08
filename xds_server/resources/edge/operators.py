"""Operators' own HTTP filters, and their patches of listeners and clusters.

``xds_server.fleet.guards`` refuses what would get round routing or its guards. A filter's settings
travel by themselves (ECDS), those of a pool with its routes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import extension_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2

from xds_server.fleet.guards.patches import CLUSTER, LISTENER, MANAGER, OPTIONS
from xds_server.fleet.guards.typed import URL, packed, parsed, type_of
from xds_server.resources.edge.pool_routes import routes_to
from xds_server.resources.sources import discovered_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
        HttpFilter,
    )

    from xds_server.fleet.model.edge import HttpFilter as FilterSpec
    from xds_server.fleet.model.edge import HttpFilters
    from xds_server.fleet.model.fleet import PoolSpec

    Patch = Sequence[Mapping[str, Any]]

_BASIC: Final = "google.protobuf"
_EXPLICIT: Final = "explicit_http_config"


def own_filters(specs: Iterable[FilterSpec]) -> list[HttpFilter]:
    """Return the listener's filters."""
    return [discovered_type(each.name, URL + type_of(each.config)) for each in specs]


def own_settings(spec: HttpFilters) -> dict[str, bytes]:
    """Return their serialized ``TypedExtensionConfig`` messages by name."""
    return {
        each.name: extension_pb2.TypedExtensionConfig(
            name=each.name, typed_config=packed(each.config)
        ).SerializeToString(deterministic=True)
        for each in (*spec.before, *spec.after)
    }


def own_messages(routes: Iterable[Any], pools: Mapping[str, PoolSpec]) -> None:
    """Write the pools' messages for these filters into their routes; changes them in place."""
    messages = {
        pool.name: {name: packed(value) for name, value in pool.http_filters.items()}
        for pool in pools.values()
        if pool.http_filters
    }
    if not messages:
        return
    for route, pool in routes_to(routes, messages):
        for name, message in messages[pool].items():
            route.typed_per_filter_config[name].CopyFrom(message)


def patched_listener(data: bytes, patch: Patch) -> bytes:
    """Return a serialized ``Listener`` with its patch."""
    if not patch:
        return data
    message = listener_pb2.Listener.FromString(data)
    for value in patch:
        merged = parsed(value)
        if type_of(value) == LISTENER:
            _merge(message, merged)
        elif type_of(value) == MANAGER:
            for chain in message.filter_chains:
                for one in chain.filters:
                    manager = http_connection_manager_pb2.HttpConnectionManager()
                    one.typed_config.Unpack(manager)
                    _merge(manager, merged)
                    one.typed_config.Pack(manager, deterministic=True)
    return message.SerializeToString(deterministic=True)  # type: ignore[no-any-return]  # untyped library


def patched_cluster(data: bytes, patch: Patch) -> bytes:
    """Return a serialized ``Cluster`` with its patch."""
    if not patch:
        return data
    message = cluster_pb2.Cluster.FromString(data)
    for value in patch:
        merged = parsed(value)
        if type_of(value) == CLUSTER:
            _merge(message, merged)
        elif type_of(value) == OPTIONS:
            (packed_options,) = message.typed_extension_protocol_options.values()
            options = http_protocol_options_pb2.HttpProtocolOptions()
            packed_options.Unpack(options)
            _merge_options(options, merged)
            packed_options.Pack(options, deterministic=True)
    return message.SerializeToString(deterministic=True)  # type: ignore[no-any-return]  # untyped library


def _merge_options(options: Any, merged: Any) -> None:
    """Merge; settings of the protocol that the cluster does not speak are left out."""
    spoken = options.explicit_http_config.WhichOneof("protocol_config")
    if (
        merged.HasField(_EXPLICIT)
        and merged.explicit_http_config.WhichOneof("protocol_config") != spoken
    ):
        merged.ClearField(_EXPLICIT)
    _merge(options, merged)


def _merge(into: Any, patch: Any) -> None:
    """Merge as protobuf does, but for Google's basic types, which are values: they are replaced.

    Protobuf would merge 3 s into 0.5 s as 3.5 s, and keep a true that is to be false.
    """
    for field, value in patch.ListFields():
        if field.is_repeated:
            getattr(into, field.name).MergeFrom(value)
        elif field.message_type is None:
            setattr(into, field.name, value)
        elif field.message_type.file.package == _BASIC:
            getattr(into, field.name).CopyFrom(value)
        else:
            mine = getattr(into, field.name)
            mine.SetInParent()
            _merge(mine, value)
