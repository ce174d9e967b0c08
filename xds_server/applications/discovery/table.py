"""The table of sources: which module looks where a pool's settings say.

A new kind of source is a field of ``EndpointsFrom`` (named in its ``SOURCES``), a module in
``xds_server/applications/discovery/``, and a row in ``TABLE``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xds_server.applications.discovery.kubernetes.pool_source import InferencePoolSource
from xds_server.applications.discovery.kubernetes.source import KubernetesSource
from xds_server.applications.discovery.sources import dns
from xds_server.applications.discovery.sources.listed import ListedEndpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xds_server.applications.discovery.sources.resolver import Resolver
    from xds_server.applications.discovery.values import Source
    from xds_server.fleet.members.origins import Origin


class SourceTools(NamedTuple):
    """What sources are made with."""

    resolver: Resolver
    rng: Callable[[], float]
    """Returns a number in [0, 1)."""


TABLE: Final[Mapping[str, Callable[[Any, SourceTools], Source]]] = {
    "file": lambda path, _: ListedEndpoints(path),
    "kubernetes": lambda spec, tools: KubernetesSource(spec, jitter=tools.rng),
    "inference_pool": lambda spec, tools: InferencePoolSource(spec, jitter=tools.rng),
    "dns": lambda spec, tools: dns.of_source(spec, tools.resolver, tools.rng),
}
"""Field of ``EndpointsFrom`` -> its source, from the field's value."""


def settings_of(origin: Origin) -> object:
    """Return what a source depends on: another value needs another source."""
    if origin.endpoint is not None:
        return origin.endpoint.id, origin.endpoint.http, origin.endpoint.grpc
    return [getattr(origin.source, name) for name in TABLE]


def source_of(origin: Origin, tools: SourceTools) -> Source:
    """Return the source of an origin."""
    if origin.endpoint is not None:
        return dns.of_endpoint(origin.endpoint, tools.resolver, tools.rng)
    kind = next(name for name in TABLE if getattr(origin.source, name) is not None)
    return TABLE[kind](getattr(origin.source, kind), tools)
