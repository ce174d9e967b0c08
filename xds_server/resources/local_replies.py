"""Envoy's own answers in the caller's dialect, as the picker writes its refusals.

Rules:

1. What the picker or a script of ours decided passes unchanged: it is written in the dialect.
2. A gRPC caller gets a status with text; a caller of an OpenAI path OpenAI's error object, and of
   Anthropic's messages theirs; every other caller ``{"error": "..."}`` as Triton writes it.
3. Every answer has `x-tidegate-reason`; those after which a caller may try again have
   `retry-after`.

Envoy answers some faults before it knows the path (headers above the limit over HTTP/1.1): these
are in Triton's form. HTTP/2 faults of a whole connection have no answer. Source:
``LocalReplyConfig`` of the HTTP connection manager.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

# Registers the type by which the filter is packed.
from envoy.extensions.access_loggers.filters.cel.v3 import cel_pb2  # noqa: F401
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)
from google.protobuf import json_format

from tidegate_api.names import REASON_HEADER
from tidegate_api.paths import ANTHROPIC_PATHS, OPENAI_PATHS, anthropic_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOT_FOUND: Final = "no pool of this gateway serves this path or model"


class _Case(NamedTuple):
    """Envoy's answers with one status."""

    status: int
    reason: str
    text: str | None = None
    """Replaces Envoy's text; ``None`` keeps it."""
    retry: bool = False
    grpc_status: int | None = None
    """Replaces Envoy's own choice of a gRPC status."""
    details: str = ""
    """Only answers whose `response.code_details` fulfil this expression (CEL)."""


_CASES: Final = (
    _Case(400, "bad-request", "the request is not valid HTTP", grpc_status=3),
    _Case(
        403,
        "not-allowed",
        "this gateway upgrades no connection",
        details="response.code_details == 'upgrade_failed'",
    ),
    _Case(403, "one-replica"),
    _Case(404, "unknown-path", NOT_FOUND),
    _Case(408, "timeout", grpc_status=4),
    _Case(413, "too-large", "the body is larger than this path takes", grpc_status=8),
    _Case(429, "saturated", retry=True, grpc_status=8),
    _Case(431, "too-large", "the headers are larger than this gateway takes", grpc_status=8),
    _Case(503, "unavailable", retry=True),
    _Case(504, "timeout"),
)
_GUARDED_CASES: Final = (
    _Case(401, "unauthenticated", grpc_status=16),
    *_CASES[:2],
    # Routes of ours that refuse have a text of their own.
    _Case(403, "forbidden", details="response.code_details != 'direct_response'", grpc_status=7),
    *_CASES[2:],
)
"""With what filters of operators refuse."""

_RETRY_AFTER_S: Final = "1"
_CLIENT_ERRORS: Final = 500
_TOO_MANY: Final = 429

_TEXT: Final = {"text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"}}
_TRITON: Final = {"json_format": {"error": "%LOCAL_REPLY_BODY%"}}


@cache
def local_replies(*, guarded: bool = False) -> bytes:
    """Return a serialized ``HttpConnectionManager`` that has nothing but its local replies.

    Appended to another one it is a part of that.

    Args:
        guarded: Whether filters of operators may refuse requests.
    """
    cases = _GUARDED_CASES if guarded else _CASES
    decided = _cel("response.code_details.startsWith('tidegate_')")
    scripted = _cel("response.code_details == 'lua_response'")
    config = {
        "mappers": [
            {"filter": decided},
            {"filter": scripted},
            *_grpc(cases),
            *_of_paths(cases, _header(":path", ANTHROPIC_PATHS), _anthropic_error),
            *_of_paths(
                cases, _any([_header(":path", each) for each in OPENAI_PATHS]), _openai_error
            ),
            *_triton(cases),
        ]
    }
    message = http_connection_manager_pb2.HttpConnectionManager()
    json_format.ParseDict(config, message.local_reply_config)
    return message.SerializeToString(deterministic=True)  # type: ignore[no-any-return]  # untyped library


def _grpc(cases: tuple[_Case, ...]) -> Iterator[dict[str, Any]]:
    caller = _header("content-type", "application/grpc([+;].*)?")
    for case in cases:
        yield _mapper(case, [caller, *_of(case)], _TEXT, grpc=True)
    yield {"filter": caller, "body_format_override": _TEXT}


def _of_paths(
    cases: tuple[_Case, ...],
    caller: dict[str, Any],
    error_of: Callable[[int, str], dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    for case in cases:
        yield _mapper(case, [caller, *_of(case)], error_of(case.status, case.reason))
    filters = [caller, _status("GE", 400)]
    error = error_of(500, "internal")
    yield {"filter": {"and_filter": {"filters": filters}}, "body_format_override": error}


def _triton(cases: tuple[_Case, ...]) -> Iterator[dict[str, Any]]:
    for case in cases:
        yield _mapper(case, _of(case), _TRITON)
    yield {"filter": _status("GE", 400), "body_format_override": _TRITON}


def _anthropic_error(status: int, _: str) -> dict[str, Any]:
    error = {"type": anthropic_error(status), "message": "%LOCAL_REPLY_BODY%"}
    return {"json_format": {"type": "error", "error": error}}


def _openai_error(status: int, reason: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status < _CLIENT_ERRORS else "server_error"
    if status == _TOO_MANY:
        kind = "rate_limit_error"
    error = {"message": "%LOCAL_REPLY_BODY%", "type": kind, "param": None, "code": reason}
    return {"json_format": {"error": error}}


def _mapper(
    case: _Case, filters: list[dict[str, Any]], body: dict[str, Any], *, grpc: bool = False
) -> dict[str, Any]:
    headers = {REASON_HEADER: case.reason}
    if case.retry:
        headers["retry-after"] = _RETRY_AFTER_S
    if grpc and case.grpc_status is not None:
        headers["grpc-status"] = str(case.grpc_status)
    made = {
        "filter": filters[0] if len(filters) == 1 else {"and_filter": {"filters": filters}},
        "headers_to_add": [
            {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
            for key, value in headers.items()
        ],
        "body_format_override": body,
    }
    if case.text is not None:
        made["body"] = {"inline_string": case.text}
    return made


def _of(case: _Case) -> list[dict[str, Any]]:
    found = [_status("EQ", case.status)]
    if case.details:
        found.append(_cel(case.details))
    return found


def _status(operator: str, status: int) -> dict[str, Any]:
    # Envoy asks for the name of a runtime key; nothing sets this one.
    value = {"default_value": status, "runtime_key": "tidegate.local_replies"}
    return {"status_code_filter": {"comparison": {"op": operator, "value": value}}}


def _header(name: str, regex: str) -> dict[str, Any]:
    match = {"name": name, "string_match": {"safe_regex": {"regex": regex}}}
    return {"header_filter": {"header": match}}


def _any(filters: list[dict[str, Any]]) -> dict[str, Any]:
    return {"or_filter": {"filters": filters}}


def _cel(expression: str) -> dict[str, Any]:
    return {
        "extension_filter": {
            "name": "envoy.access_loggers.extension_filters.cel",
            "typed_config": {
                "@type": "type.googleapis.com/"
                "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter",
                "expression": expression,
            },
        }
    }
