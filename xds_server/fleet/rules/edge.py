"""Rules for what clients may send: headers that choose, and the pools' own paths."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tidegate_api.names import MODEL_HEADER, POLICY_HEADER, POOL_HEADER
from xds_server.fleet.guards.filters import filters
from xds_server.fleet.guards.fronts import exposed, fronts
from xds_server.fleet.guards.patches import patches
from xds_server.fleet.guards.tokens import tokens
from xds_server.fleet.rules.problem import Location, Problem, repeated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xds_server.fleet.model.fleet import Fleet

_ABNORMAL: Final = re.compile(
    r"//|\\|/\.{1,2}(/|$)|%(2[DdEeFf]|3[0-9]|[46][1-9A-Fa-f]|5[0-9AaCcFf]|7[0-9AaEe])"
)
"""Parts of a path that Envoy rewrites before routes match."""

MAX_SIGHT: Final = 4096
"""Most characters of the names of the pools that a gateway is told to speak of."""


def choosing_headers(fleet: Fleet) -> frozenset[str]:
    """Return the headers by which a request may choose its pool, model, policy or variant."""
    pinned = (name for pool in fleet.pools for v in pool.variants for name in v.match.headers)
    return frozenset((POOL_HEADER, MODEL_HEADER, POLICY_HEADER, *pinned))


def edge(fleet: Fleet) -> Iterator[Problem]:
    """Yield the problems of headers that choose, of the pools' paths, and of the edge's guards."""
    yield from tokens(fleet)
    yield from filters(fleet)
    yield from patches(fleet.listener)
    yield from _sights(fleet)
    at: Location = ("listener", "client_headers")
    known = choosing_headers(fleet)
    listed = fleet.listener.client_headers or ()
    yield from repeated(listed, at, None, "header")
    for position, name in enumerate(listed):
        if name not in known:
            yield Problem(
                (*at, position),
                f"'{name}' chooses nothing, so clients may send it anyway; "
                f"list some of {', '.join(sorted(known))}",
            )
    for position, pool in enumerate(fleet.pools):
        session = pool.routing.session_header
        if session in known and not fleet.listener.takes(session):
            yield Problem(
                ("pools", position, "routing", "session_header"),
                f"header '{session}' is stripped from client requests; "
                "add it to listener.client_headers or choose another name",
            )
        for number, path in enumerate(pool.match.paths):
            if _ABNORMAL.search(path):
                yield Problem(
                    ("pools", position, "match", "paths", number),
                    f"no request has the path '{path}', because Envoy normalises paths; "
                    "write it without '//', '.', '..', '\\' and needless escapes",
                )


def _sights(fleet: Fleet) -> Iterator[Problem]:
    """Yield the hosts whose pools do not fit into the header that tells a gateway of them."""
    if fleet.gateway is None:
        return
    for front in fronts(fleet.listener):
        for host in front.hosts:
            pools = exposed(fleet, host).pools
            every = host.pools is None and not any(pool.guarded for pool in pools)
            length = sum(len(pool.name) + 1 for pool in pools if not pool.guarded)
            if length > MAX_SIGHT and not every:
                yield Problem(
                    ("gateway",),
                    f"a host with pools of its own, or beside guarded ones, has pools whose names"
                    f" add up to {length} characters; a gateway is told at most {MAX_SIGHT}:"
                    " shorten names, split the fleet, or remove the gateway",
                )
