"""Rules for operators' own HTTP filters: none can be got round, and none opens a way round ours.

Rules:

1. Where only a body names the pool, a request arrives on another route than the one on which it
   leaves. So a filter *before* the picker holds for the listener as a whole: it has no settings per
   pool, and may not decide by paths, which do not say the pool.
2. Envoy decides which filters a request passes when it arrives. So no route switches a filter on or
   off; a filter *after* the picker may have a message per pool, which it reads when it runs.
3. A filter *after* the picker never lets Envoy choose the route again: tokens were checked for the
   one before.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from tidegate_api.names import PICKER_FILTER
from xds_server.fleet.guards.typed import TypedError, parsed, type_of
from xds_server.fleet.memo import ByIdentity
from xds_server.fleet.rules.problem import Location, Problem, listed, repeated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xds_server.fleet.model.edge import HttpFilter
    from xds_server.fleet.model.fleet import Fleet, PoolSpec
    from xds_server.fleet.model.listener import ListenerSpec

_HTTP: Final = "envoy.extensions.filters.http."
_OURS: Final = "tidegate"
_LAST: Final = frozenset({"router", "upstream_codec"})
_CHOOSE_AGAIN: Final = {
    "composite": "it runs filters that cannot be seen here",
    "connect_grpc_bridge": "it chooses the route again",
    "custom_response": "it sends requests to another route",
    "dynamic_modules": "its code may choose the route again",
    "ext_proc": "its server may choose the route again",
    "grpc_http1_bridge": "it chooses the route again",
    "grpc_http1_reverse_bridge": "it chooses the route again",
    "grpc_json_reverse_transcoder": "it chooses the route again",
    "grpc_json_transcoder": "it chooses the route again",
    "ip_tagging": "it chooses the route again",
    "json_to_metadata": "it chooses the route again",
    "mcp_router": "it sends requests to clusters of its own",
    "on_demand": "it chooses the route again",
    "wasm": "its code may choose the route again",
}
"""Filters that may not stand after the picker, by the package of their type."""

_CLEARING: Final = re.compile(r"clearRouteCache|upstreamOverrideHost", re.IGNORECASE)
_PATH_RULES: Final = frozenset({"url_path", "uri_template", "path_template"})
_DECIDING_HEADERS: Final = frozenset({":path", "x-envoy-original-path"})
_HEADER_KEYS: Final = frozenset({"name", "header_name", "headerName"})
_PATH_EXPRESSION: Final = re.compile(r"request\s*\.\s*(url_)?path|request\s*\[")
_UNSEEN_SOURCES: Final = frozenset(
    {"filename", "inline_bytes", "inlineBytes", "environment_variable", "environmentVariable"}
)


def filters(fleet: Fleet) -> Iterator[Problem]:
    """Yield the problems of the filters, and of the pools' messages for them."""
    spec = fleet.listener
    yield from _alone(spec)
    if len(fleet.pools) > 1:
        for position, each in enumerate(spec.http_filters.before):
            yield from _by_path(("listener", "http_filters", "before", position, "config"), each)
    behind = {each.name: each for each in spec.http_filters.after}
    ahead = {each.name for each in spec.http_filters.before}
    for position, pool in enumerate(fleet.pools):
        for name, value in pool.http_filters.items():
            at: Location = ("pools", position, "http_filters", name)
            if name in behind:
                yield from _of_route(at, behind[name], value)
                yield from _chooses_again(at, _kind(behind[name].config), value)
            elif name in ahead:
                yield Problem(
                    at,
                    f"filter '{name}' stands before the picker, where the pool is not known yet: "
                    "a request whose body names the pool would pass it by; move the filter to "
                    "listener.http_filters.after",
                )
            else:
                known = f"there are {listed(behind)}" if behind else "there is none"
                yield Problem(at, f"listener.http_filters.after has no filter '{name}'; {known}")


def filters_of_pool(at: Location, pool: PoolSpec) -> Iterator[Problem]:
    """Yield what is wrong with a pool's messages, whatever else the fleet contains."""
    for name, value in pool.http_filters.items():
        yield from message((*at, "http_filters", name), value)


def message(at: Location, value: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problem of a value that is no message of Envoy."""
    try:
        parsed(value)
    except TypedError as error:
        yield Problem((*at, *error.location), error.reason)


@ByIdentity
def _of_listener(spec: ListenerSpec) -> tuple[Problem, ...]:
    at: Location = ("listener", "http_filters")
    every = [*spec.http_filters.before, *spec.http_filters.after]
    found = list(repeated([each.name for each in every], at, "name", "filter"))
    for place, several in (
        ("before", spec.http_filters.before),
        ("after", spec.http_filters.after),
    ):
        for position, each in enumerate(several):
            found += _filter((*at, place, position), each, after=place == "after")
    return tuple(found)


def _alone(spec: ListenerSpec) -> Iterator[Problem]:
    if spec.http_filters.before or spec.http_filters.after:
        yield from _of_listener(spec)


def _filter(at: Location, spec: HttpFilter, *, after: bool) -> Iterator[Problem]:
    if spec.name.startswith(_OURS) or spec.name == PICKER_FILTER:
        yield Problem((*at, "name"), f"the name '{spec.name}' is one of ours; choose another")
    wrong = list(message((*at, "config"), spec.config))
    if wrong:
        yield from wrong
        return
    place: Location = (*at, "config", "@type")
    name = type_of(spec.config)
    if not name.startswith(_HTTP):
        yield Problem(place, f"{name} is no HTTP filter; those begin with {_HTTP}")
        return
    kind = _kind(spec.config)
    if kind in _LAST:
        yield Problem(place, f"there is one {kind} filter, which is ours and the last; remove it")
    if not after:
        return
    if kind in _CHOOSE_AGAIN:
        yield Problem(
            place,
            f"{kind} cannot stand after the picker: {_CHOOSE_AGAIN[kind]}, and the pool's token "
            "was checked for the one before; move it to `before`",
        )
    yield from _chooses_again((*at, "config"), kind, spec.config)
    if kind == "lua":
        yield from _lua_chooses_again((*at, "config"), spec.config)


def _kind(config: Mapping[str, Any]) -> str:
    """Return the last part of a filter's package, such as ``rbac``; empty if it has none."""
    name = str(config.get("@type", "")).rpartition("/")[2]
    return name.removeprefix(_HTTP).partition(".")[0] if name.startswith(_HTTP) else ""


def _lua_chooses_again(at: Location, value: Mapping[str, Any]) -> Iterator[Problem]:
    if value.get("clear_route_cache", value.get("clearRouteCache")) is not False:
        yield Problem(
            at,
            "Lua chooses the route again where it changes a header, and the pool's token was "
            "checked for the one before; write `clear_route_cache: false`",
        )


def _chooses_again(at: Location, kind: str, value: Any) -> Iterator[Problem]:
    """Yield what lets Envoy choose the route again, in a filter's or in a pool's message."""
    for place, key, each in _fields(value, ()):
        said = key.replace("_", "").lower()
        if (said == "clearroutecache" and each is True) or (
            said == "routecacheaction" and each not in ("RETAIN", 2)
        ):
            yield Problem(
                (*at, *place),
                "after the picker no filter may let Envoy choose the route again: the pool's token "
                "was checked for the one before; remove it, or move the filter to `before`",
            )
        elif kind == "lua" and isinstance(each, str) and _CLEARING.search(each):
            yield Problem(
                (*at, *place),
                "after the picker no script may choose the route or the replica again; remove "
                "the call, or move the filter to `before`",
            )
        elif kind == "lua" and key in _UNSEEN_SOURCES:
            yield Problem(
                (*at, *place),
                "after the picker a script may not choose the route again, which can only be "
                "checked where its text stands here; write it as `inline_string`, or move the "
                "filter to `before`",
            )


def _by_path(at: Location, spec: HttpFilter) -> Iterator[Problem]:
    """Yield the rules of a filter before the picker that decide who may call by the path."""
    kind = _kind(spec.config)
    text = (
        "before the picker a path does not say the pool: elsewhere a body names it, and the rule "
        "would be got round; use the pool's `jwt`, or a filter in `after` with the pool's "
        "`http_filters`"
    )
    if kind == "jwt_authn":
        rules = spec.config.get("rules", [])
        for position, rule in enumerate(rules if isinstance(rules, list) else []):
            if isinstance(rule, dict) and rule.get("match") != {"prefix": "/"}:
                yield Problem((*at, "rules", position, "match"), f"{text}, or match all: prefix /")
    elif kind in {"rbac", "oauth2"}:
        for place, key, each in _fields(spec.config, ()):
            snake = re.sub(r"(?<!^)(?=[A-Z])", "_", key).lower()
            if (
                snake in _PATH_RULES
                or (key in _HEADER_KEYS and str(each).lower() in _DECIDING_HEADERS)
                or (isinstance(each, str) and _PATH_EXPRESSION.search(each))
            ):
                yield Problem((*at, *place), text)


def _of_route(at: Location, spec: HttpFilter, value: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problem of a pool's message that is not of its filter's own kind."""
    try:
        own, theirs = type_of(value), type_of(spec.config)
    except TypedError:
        return  # said where the message stands
    package = theirs.rpartition(".")[0]
    if own.rpartition(".")[0] != package:
        yield Problem(
            (*at, "@type"),
            f"{own} is no message of filter '{spec.name}', which is {theirs}; write one of "
            f"{package}. Switching a filter on or off for a pool cannot work: Envoy decides it "
            "before the pool is known",
        )


def _fields(value: Any, at: Location) -> Iterator[tuple[Location, str, Any]]:
    """Yield location, name and value of each field at any depth."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield (*at, key), key, each
            yield from _fields(each, (*at, key))
    elif isinstance(value, list | tuple):
        for position, each in enumerate(value):
            yield from _fields(each, (*at, position))
