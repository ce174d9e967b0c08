"""The model of a request that no picker has seen, for Envoy's own choice of a replica.

Rules:

1. Where models are not everywhere, replicas carry those that they have as metadata
   (``keepers.placement_keeper``), and the cluster's policy takes one that carries the request's
   model. A model that no replica carries goes to any.
2. The filter puts the model into the request's metadata: out of the path, the header for it, or
   what Envoy has read of the body. It runs behind ext_proc, on routes that enable it, and not for
   requests that have a pick.

Source: ``envoy/extensions/filters/http/header_to_metadata/v3/header_to_metadata.proto``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from envoy.extensions.filters.http.header_to_metadata.v3 import header_to_metadata_pb2

from tidegate_api.names import (
    CONTROL_MODEL_HEADER,
    DESTINATION_HEADER,
    LB_NAMESPACE,
    MODEL_HEADER,
    PLACED_KEY,
)
from xds_server.resources.filters.wrapped import Skip, enable, wrapped

if TYPE_CHECKING:
    from xds_server.fleet.model.fleet import PoolSpec

_NAME: Final = "tidegate.without.placed"
_PICKED: Final = (Skip(DESTINATION_HEADER),)
_OF_PATH: Final = r"^/v2/models/([^/?]+)(?:/.*)?$"


def placed_filter() -> bytes:
    """Return the serialized ``HttpFilter``."""
    message = header_to_metadata_pb2.Config()
    for header in (":path", MODEL_HEADER, CONTROL_MODEL_HEADER):
        found = message.request_rules.add(header=header).on_header_present
        found.metadata_namespace, found.key = LB_NAMESPACE, PLACED_KEY
        if header == ":path":
            found.regex_value_rewrite.pattern.regex = _OF_PATH
            found.regex_value_rewrite.substitution = r"\1"
    return wrapped(_NAME, message, _PICKED)


def choose_by_model(route: Any, pool: PoolSpec) -> None:
    """Let Envoy choose among the replicas that have the model, where a pool has several models."""
    if pool.chooses_models:
        enable(route, (_NAME,), _PICKED)
