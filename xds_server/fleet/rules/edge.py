"""Rules for what clients may send: headers that choose, and the pools' own paths."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tidegate_api.names import MODEL_HEADER, POLICY_HEADER, POOL_HEADER
from tidegate_common.tls.binds import is_local
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
    yield from _operators(fleet)
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


def _operators(fleet: Fleet) -> Iterator[Problem]:
    """Yield the listeners for operators that have no gateway, or whose callers are not known."""
    gateway = fleet.gateway
    for position, each in enumerate(fleet.listener.further):
        if not each.operators:
            continue
        at: Location = ("listener", "further", position, "operators")
        asks = each.tls is not None and each.tls.client_ca is not None
        if gateway is None or gateway.operators is None:
            yield Problem(
                at, "no gateway takes these calls; name its `--admin` ports in gateway.operators"
            )
        if not asks and not is_local(each.address):
            yield Problem(
                at,
                f"whoever reaches {each.address} could change replicas; listen on loopback,"
                " or ask for certificates (`tls` with `client_ca`)",
            )
        if gateway is not None and asks and gateway.tls is None:
            yield Problem(
                at,
                "a gateway without TLS knows no roles, so every certificate could change replicas;"
                " give the gateway certificates and write gateway.tls",
            )
        if gateway is not None and gateway.tls is not None and not asks:
            yield Problem(
                at,
                "the gateway has TLS and asks who calls; ask for certificates here (`tls` with"
                " `client_ca`)",
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
