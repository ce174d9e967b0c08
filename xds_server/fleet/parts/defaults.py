"""The default pool of each form of requests in which only the body names the pool. Pure.

Of the pools that share a form exactly one is marked; a single pool is the default without the mark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from xds_server.fleet.parts.successive import Successive
from xds_server.fleet.view import speaks, spoken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tidegate_api.names import Protocol
    from xds_server.fleet.model.fleet import Fleet, PoolSpec
    from xds_server.fleet.parts.successive import Changes


def default_for_grpc(fleet: Fleet) -> str | None:
    """Return the default pool of gRPC requests; ``None`` if no pool speaks gRPC."""
    return _defaults_of(fleet).grpc


def default_for_http(fleet: Fleet) -> str | None:
    """Return the default pool of HTTP requests that no path or model assigns.

    ``None`` if no pool speaks HTTP, or several do and none is marked.
    """
    return _defaults_of(fleet).http


def default_for_path(fleet: Fleet, path: str) -> str | None:
    """Return the default pool of requests to ``path``; ``None`` if no pool serves it."""
    return _defaults_of(fleet).paths.get(path)


class Defaults(NamedTuple):
    """The default pool of each form."""

    grpc: str | None
    """Of gRPC requests; ``None`` if there is none."""
    http: str | None
    """Of HTTP requests that neither path nor model assigns; ``None`` if there is none."""
    paths: Mapping[str, str | None]
    """Of requests to each of the pools' paths."""


def defaults_of(fleet: Fleet) -> Defaults:
    """Return the default pools; the same object as long as nothing of them changes."""
    return _defaults_of(fleet)


def _all_defaults(fleet: Fleet) -> Defaults:
    sharing: dict[str, list[PoolSpec]] = {}
    for pool in fleet.pools:
        if pool.match.paths and speaks(pool, "http"):
            for path in dict.fromkeys(pool.match.paths):
                sharing.setdefault(path, []).append(pool)
    return Defaults(
        _default([pool for pool in fleet.pools if speaks(pool, "grpc")]),
        _default([pool for pool in fleet.pools if speaks(pool, "http")]),
        {path: _default(pools) for path, pools in sharing.items()},
    )


def forms_of(pool: PoolSpec) -> tuple[object, ...]:
    """Return what decides in which forms a pool takes part, and whether as the default."""
    return pool.default, pool.match.paths, spoken(pool)


def _same_defaults(before: Defaults, changes: Changes, _: Fleet) -> Defaults | None:
    return before if all(forms_of(each.was) == forms_of(each.now) for each in changes) else None


_defaults_of: Final = Successive(_all_defaults, _same_defaults)


def _default(sharing: Sequence[PoolSpec]) -> str | None:
    if len(sharing) == 1:
        return sharing[0].name
    marked = [pool.name for pool in sharing if pool.default]
    return marked[0] if len(marked) == 1 else None


def server_pool(fleet: Fleet, protocol: Protocol) -> PoolSpec | None:
    """Return the pool for calls about the server as a whole: a default pool, else the first."""
    able = [pool for pool in fleet.pools if speaks(pool, protocol)]
    return next((pool for pool in able if pool.default), able[0] if able else None)
