"""Rules for what clients may send: headers that choose, and the pools' own paths."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tidegate_api.names import MODEL_HEADER, POLICY_HEADER, POOL_HEADER
from xds_server.fleet.rules.problem import Location, Problem, repeated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xds_server.fleet.model.fleet import Fleet

_ABNORMAL: Final = re.compile(
    r"//|\\|/\.{1,2}(/|$)|%(2[DdEeFf]|3[0-9]|[46][1-9A-Fa-f]|5[0-9AaCcFf]|7[0-9AaEe])"
)
"""Parts of a path that Envoy rewrites before routes match."""


def choosing_headers(fleet: Fleet) -> frozenset[str]:
    """Return the headers by which a request may choose its pool, model, policy or variant."""
    pinned = (name for pool in fleet.pools for v in pool.variants for name in v.match.headers)
    return frozenset((POOL_HEADER, MODEL_HEADER, POLICY_HEADER, *pinned))


def edge(fleet: Fleet) -> Iterator[Problem]:
    """Yield the problems of `listener.client_headers` and of the pools' paths."""
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
