"""Rules for tokens: the providers exist, and no replica can be reached without its pool's token.

A replica serves whatever model a body names. If it stood in a pool that asks for a token and in one
that does not, a request to the latter could name the former's model, wherever nothing reads the
body again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from xds_server.fleet.model.fields import RESERVED_HEADER_PREFIXES
from xds_server.fleet.rules.problem import Location, Problem, listed, repeated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xds_server.fleet.model.edge import JwtProvider
    from xds_server.fleet.model.fleet import Fleet, PoolSpec


def tokens(fleet: Fleet) -> Iterator[Problem]:
    """Yield the problems of the providers, and of the pools' requirements."""
    providers = fleet.listener.jwt
    at: Location = ("listener", "jwt")
    names = [each.name for each in providers]
    yield from repeated(names, at, "name", "provider")
    for position, provider in enumerate(providers):
        yield from _provider((*at, position), provider)
    for position, pool in enumerate(fleet.pools):
        if pool.jwt is None:
            continue
        place: Location = ("pools", position, "jwt", "any_of")
        yield from repeated(pool.jwt.any_of, place, None, "provider")
        for number, name in enumerate(pool.jwt.any_of):
            if name not in names:
                known = f"there are {listed(names)}" if names else "there is none"
                yield Problem((*place, number), f"listener.jwt has no provider '{name}'; {known}")


def shared_replicas(fleet: Fleet) -> Iterator[Problem]:
    """Yield the replicas that stand in pools which do not ask for the same."""
    if not any(pool.jwt or pool.http_filters for pool in fleet.pools):
        return
    first: dict[str, PoolSpec] = {}
    finders: dict[str, PoolSpec] = {}
    for i, pool in enumerate(fleet.pools):
        for j, endpoint in enumerate(pool.endpoints):
            known = first.setdefault(endpoint.id, pool)
            if guard_of(known) != guard_of(pool):
                yield Problem(
                    ("pools", i, "endpoints", j),
                    f"replica '{endpoint.id}' is in pool '{known.name}' too, which asks for "
                    "something else, so a request there could name this pool's model; write the "
                    "same `jwt` and `http_filters` in both, or give each pool replicas of its own",
                )
        for j, source in enumerate(pool.endpoints_from):
            others = [finders.setdefault(each, pool) for each in sorted(source.reaches)]
            known = next((each for each in others if guard_of(each) != guard_of(pool)), pool)
            if known is not pool:
                yield Problem(
                    ("pools", i, "endpoints_from", j),
                    f"pool '{known.name}' finds the same replicas and asks for another token "
                    "or has other filters; write the same `jwt` and `http_filters` in both, or "
                    "give each pool replicas of its own",
                )


def guard_of(pool: PoolSpec) -> Any:
    """Return what all pools of a replica must have in common."""
    return pool.jwt, pool.http_filters


def _provider(at: Location, provider: JwtProvider) -> Iterator[Problem]:
    if provider.header.startswith(RESERVED_HEADER_PREFIXES):
        yield Problem(
            (*at, "header"),
            f"header '{provider.header}' is reserved and stripped from client requests; choose "
            "another name",
        )
    if provider.jwks is not None and not _is_key_set(provider.jwks):
        yield Problem(
            (*at, "jwks"), 'this is no key set; write JSON such as {"keys": [{"kty": "RSA", ...}]}'
        )


def _is_key_set(text: str) -> bool:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    keys = found.get("keys") if isinstance(found, dict) else None
    return isinstance(keys, list) and bool(keys)
