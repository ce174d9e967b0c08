"""Forms of requests whose pool only the body names, and their routes by a model that Envoy read.

Where Envoy reads the model (``xds_server.fleet.rules.bodies``) it matches the route again with the
model in a header. Rules:

1. Of the pools that share the form, the one that serves the model takes the request. On paths of
   engines' forms ``base:adapter`` is also ``base``, as for pickers: the longest base counts.
2. On its paths a pool without models takes every model that no other pool has there. Else an
   inference of a model that no pool serves is refused; other calls about it go to the default pool,
   whose replicas answer with Triton's own error. So do streams, where any pool's replicas can
   answer.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from envoy.config.route.v3 import route_components_pb2

from tidegate_api.names import ASKED_HEADER, CONTROL_MODEL_HEADER, UNPICKED_HEADER, Protocol
from tidegate_api.paths import MODEL_ENDINGS, SCORE_PATHS
from xds_server.fleet.rules.bodies import BodyRead, largest_body, largest_first_message
from xds_server.resources.filters.body_model import CODINGS, read_before, read_without
from xds_server.resources.routes.paths import GRPC_SERVICE, POST, Call
from xds_server.resources.routes.pins import header_in, header_present

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from xds_server.fleet.model.fleet import PoolSpec

READ_HEADERS: Final = (CONTROL_MODEL_HEADER, UNPICKED_HEADER, ASKED_HEADER)
"""Headers that Envoy sets for itself; replicas do not get them."""

STREAM_FORM: Final = "grpc-stream"
"""Name of the form of streams."""

_SEPARATOR: Final = "[:/#@|+]+"
"""Between a base model and an adapter, see ``ext_proc/requests/reading.py``."""

COMPRESSED: Final = route_components_pb2.HeaderMatcher(
    name="grpc-encoding", string_match={"safe_regex": {"regex": CODINGS}}
)
"""Matches calls whose messages may be compressed."""

_NAMED: Final = tuple(ending.removeprefix("/") for ending in MODEL_ENDINGS)
_WHOLE: Final = frozenset(path.removeprefix("/") for path in SCORE_PATHS)


class UnnamedForm(NamedTuple):
    """One form of requests."""

    name: str
    """Unique part of its routes' names; of HTTP forms the path without its first slash."""
    call: Call
    protocol: Protocol
    default: PoolSpec
    """Takes requests that name no model."""
    sharing: Sequence[PoolSpec]
    """All pools of the form, the default one included."""
    read_at: BodyRead
    """When Envoy reads the model."""
    any_model: bool = False
    """Whether a model that no pool serves goes to the default pool."""

    @property
    def inferences(self) -> Call:
        """The calls of the form that are inferences."""
        if self.name != "grpc":
            return self.call
        return Call({"path": GRPC_SERVICE + "ModelInfer"}, POST)

    def read(self, route: Any, *, leave_compressed: bool) -> None:
        """Let the route on which requests of this form arrive read their model."""
        grpc = self.protocol == "grpc"
        if self.read_at.before:
            read_before(route, grpc=grpc, leave_compressed=leave_compressed)
            limit, streams = route.request_body_buffer_limit, self.name == STREAM_FORM
            held = largest_first_message if streams else largest_body
            limit.value = max(limit.value, held(self.sharing))
        if self.read_at.without:
            read_without(route, grpc=grpc)

    def models(self) -> Iterator[tuple[str, list[Any], PoolSpec]]:
        """Yield (route name, header matchers, pool) by the model that Envoy read."""
        for pool in self.sharing:
            if pool.match.models:
                matcher = header_in(CONTROL_MODEL_HEADER, pool.match.models)
                yield f"{pool.name}/by-body/{self.name}", [matcher], pool
        if self.protocol == "http" and (self.name.endswith(_NAMED) or self.name in _WHOLE):
            yield from self._adapters()
        if self._without_models:
            any_model = next(pool for pool in self.sharing if not pool.match.models)
            matcher = header_present(CONTROL_MODEL_HEADER)
            yield f"{any_model.name}/by-body/{self.name}/any-model", [matcher], any_model

    @property
    def takes_any(self) -> bool:
        """Whether a pool takes every model that no other pool has."""
        return self.any_model or self._without_models

    @property
    def _without_models(self) -> bool:
        return self.protocol == "http" and any(not pool.match.models for pool in self.sharing)

    def _adapters(self) -> Iterator[tuple[str, list[Any], PoolSpec]]:
        served = [(model, pool) for pool in self.sharing for model in pool.match.models]
        depths = _depths([model for model, _ in served])
        ranked = sorted(served, key=lambda each: -depths[each[0]])
        for (name, depth), group in groupby(ranked, lambda each: (each[1].name, depths[each[0]])):
            known = list(group)
            bases = "|".join(re.escape(model) for model, _ in known)
            matcher = route_components_pb2.HeaderMatcher(
                name=CONTROL_MODEL_HEADER,
                string_match={"safe_regex": {"regex": f"({bases}){_SEPARATOR}.+"}},
            )
            label = f"{name}/by-body/{self.name}/adapters-{depth}"
            yield label, [matcher], known[0][1]


def _depths(models: Iterable[str]) -> dict[str, int]:
    """Return how many other models each model starts with, up to a separator."""
    names = set(models)
    return {
        model: sum(model[: found.start()] in names for found in re.finditer(_SEPARATOR, model))
        for model in names
    }
