"""Uploads that got no pick: held by Envoy until they are complete, so that they fill no breaker.

A picker is late under a flood of half uploads, and Envoy goes on without it. An upload that is then
forwarded holds a connection and a request of its replica until it ends. Rules:

1. The filter runs behind ext_proc, on routes of inferences with one body, and not for requests that
   have a pick. Streams of gRPC never wait.
2. A body whose announced length is at most ``request_body_buffer_limit`` of the route is held until
   it is complete. What is complete goes on at once, so nothing that is sent whole is lost.
3. Where the picker was late, a longer body is refused with 503. One of unknown length is held as
   well, and above the limit Envoy answers 413.
4. Where there is no picker, longer bodies and those of unknown length go on as they come.

A picker was late if the request has been with it for ``LATE_MS``; one that is not there costs no
time. So with a smaller ``pickers.timeout`` none is late. Time before and behind ext_proc does not
count: where other filters read the model from the body, they take as long as the client sends.

Sources: ``lua/v3``, ``header_mutation/v3`` of Envoy's ``extensions/filters/http``.
"""

from __future__ import annotations

from typing import Any, Final

from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2
from envoy.extensions.filters.http.lua.v3 import lua_pb2

from tidegate_api.names import DESTINATION_HEADER, WAITED_HEADER
from xds_server.resources.filters.scripts import HOLD
from xds_server.resources.filters.wrapped import Skip, enable, wrapped

_WAITED: Final = "tidegate.late.waited"
_HOLD: Final = "tidegate.late.hold"
_PICKED: Final = (Skip(DESTINATION_HEADER),)
_LUA: Final = "envoy.filters.http.lua"
_LIMIT_KEY: Final = "hold"


def waited_filter() -> bytes:
    """Return the serialized ``HttpFilter`` directly behind ext_proc."""
    return wrapped(_WAITED, time_header(WAITED_HEADER), _PICKED)


def hold_filter() -> bytes:
    """Return the serialized ``HttpFilter`` that holds, behind those that read the model."""
    script = lua_pb2.Lua()
    script.default_source_code.inline_string = HOLD
    script.clear_route_cache.value = False
    return wrapped(_HOLD, script, _PICKED)


def time_header(name: str) -> Any:
    """Return a ``HeaderMutation`` that writes the age of a request into a header, milliseconds."""
    message = header_mutation_pb2.HeaderMutation()
    header = message.mutations.request_mutations.add().append
    header.header.key, header.header.value = name, "%DURATION%"
    header.append_action = header.OVERWRITE_IF_EXISTS_OR_ADD
    return message


def hold_nothing(route: Any) -> None:
    """Let a route that asks no picker hold nothing."""
    for name in (_WAITED, _HOLD):
        route.typed_per_filter_config.pop(name, None)


def hold_uploads(route: Any, limit: int) -> None:
    """Let a route hold uploads without a pick of at most ``limit`` bytes."""
    route.metadata.filter_metadata[_LUA].fields[_LIMIT_KEY].number_value = limit
    enable(route, (_WAITED, _HOLD), _PICKED)
