"""Refusals in the caller's dialect: Triton's, OpenAI's or Anthropic's JSON, or a gRPC status.

Sources: Triton's HTTP error shape (``{"error": "..."}``, KServe v2), OpenAI's error object, which
SGLang writes for its own calls too, Anthropic's error object and its types by status, the gRPC
status codes (``grpc/grpc: doc/statuscodes.md``) and details (``google/rpc/error_details.proto``),
and the fields `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers-10, where
`qu` is the unit of the quota).
"""

from __future__ import annotations

import re
from base64 import b64encode
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson
from google.protobuf.duration_pb2 import Duration
from google.rpc import status_pb2
from google.rpc.error_details_pb2 import RetryInfo

from ext_proc.exchange.messages import Refuse
from ext_proc.routing.values.refusal import HUNG, Refusal, RefusalKind
from ext_proc.routing.values.request import Form
from tidegate_api.names import AGAIN_HEADER, REASON_HEADER
from tidegate_api.paths import ANTHROPIC_PATHS, anthropic_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.exchange.messages import Head


class _Status(NamedTuple):
    http: int
    grpc: int
    openai: str


_STATUS: Final[Mapping[RefusalKind, _Status]] = {
    RefusalKind.BAD_REQUEST: _Status(400, 3, "invalid_request_error"),
    RefusalKind.TRAILERS: _Status(400, 3, "invalid_request_error"),
    RefusalKind.LENGTH_REQUIRED: _Status(411, 3, "invalid_request_error"),
    RefusalKind.BAD_SHAPE: _Status(400, 3, "invalid_request_error"),
    RefusalKind.TOO_DEEP: _Status(400, 3, "invalid_request_error"),
    RefusalKind.TOO_COMPLEX: _Status(400, 3, "invalid_request_error"),
    RefusalKind.TOO_MANY_TOKENS: _Status(400, 3, "invalid_request_error"),
    RefusalKind.UNKNOWN_POOL: _Status(404, 5, "invalid_request_error"),
    RefusalKind.UNKNOWN_MODEL: _Status(404, 5, "invalid_request_error"),
    RefusalKind.UNKNOWN_VERSION: _Status(404, 5, "invalid_request_error"),
    RefusalKind.HEADERS_TOO_LARGE: _Status(431, 8, "invalid_request_error"),
    RefusalKind.TOO_LARGE: _Status(413, 8, "invalid_request_error"),
    RefusalKind.SATURATED: _Status(429, 8, "rate_limit_error"),
    RefusalKind.QUEUE_FULL: _Status(429, 8, "rate_limit_error"),
    RefusalKind.DEADLINE_UNMET: _Status(429, 8, "rate_limit_error"),
    RefusalKind.DEADLINE_PASSED: _Status(504, 4, "server_error"),
    RefusalKind.TOO_MANY_UPLOADS: _Status(429, 8, "rate_limit_error"),
    RefusalKind.NO_ENDPOINTS: _Status(503, 14, "server_error"),
    RefusalKind.WRONG_VERSION: _Status(503, 14, "server_error"),
    RefusalKind.HUNG_REPLICA: _Status(503, 14, "server_error"),
    RefusalKind.DEADLY_REQUEST: _Status(422, 3, "invalid_request_error"),
    RefusalKind.SUSPECT_WAITS: _Status(503, 14, "server_error"),
    RefusalKind.UNPLACED: _Status(503, 14, "server_error"),
    RefusalKind.NO_PICK: _Status(503, 14, "server_error"),
}
_RETRY_AFTER: Final = frozenset(
    {
        RefusalKind.SATURATED,
        RefusalKind.QUEUE_FULL,
        RefusalKind.DEADLINE_UNMET,
        RefusalKind.TOO_MANY_UPLOADS,
        RefusalKind.NO_ENDPOINTS,
        RefusalKind.WRONG_VERSION,
        RefusalKind.HUNG_REPLICA,
        RefusalKind.SUSPECT_WAITS,
        RefusalKind.UNPLACED,
        RefusalKind.NO_PICK,
    }
)
_RETRY_AFTER_S: Final = 1
"""Seconds where no wait is predicted."""
_DETAILS_HEADER: Final = "grpc-status-details-bin"
_LIMIT_HEADER, _POLICY_HEADER = "ratelimit", "ratelimit-policy"
_INTERNAL: Final = 13
_OPENAI: Final = frozenset({Form.OPENAI, Form.RESPONSES, Form.SCORE, Form.SGLANG})
_ANTHROPIC: Final = re.compile(ANTHROPIC_PATHS)
_GRPC_CONTENT: Final = "application/grpc"
_AGAIN: Final = (AGAIN_HEADER, "1")


def speaks_grpc(headers: Mapping[str, str]) -> bool:
    """Return whether the caller expects a gRPC status, by its content type."""
    return headers.get("content-type", "").startswith(_GRPC_CONTENT)


def refuse(refusal: Refusal, form: Form, headers: Mapping[str, str], path: str = "") -> Refuse:
    """Write ``refusal`` for a caller whose request had the form ``form``.

    Calls below `/v1` that are no inference are OpenAI's too, such as `/v1/rerank`.
    """
    status = _STATUS[refusal.kind]
    reason = refusal.kind.value
    extra = [(REASON_HEADER, reason)]
    retry_s = None
    if refusal.kind in _RETRY_AFTER:
        retry_s = _RETRY_AFTER_S if refusal.wait_s is None else max(1, ceil(refusal.wait_s))
        extra.append(("retry-after", str(retry_s)))
        if refusal.limit is not None:
            extra.append((_POLICY_HEADER, f'"replicas";q={refusal.limit};qu="concurrent-requests"'))
            extra.append((_LIMIT_HEADER, f'"replicas";r=0;t={retry_s}'))
    if speaks_grpc(headers):
        code = _INTERNAL if refusal.malformed else status.grpc
        if retry_s is not None:
            extra.append((_DETAILS_HEADER, _retry_info(code, refusal.message, retry_s)))
        return Refuse(status.http, code, reason, refusal.message.encode(), tuple(extra))
    extra.append(("content-type", "application/json"))
    if form is Form.MESSAGES or (form is Form.OTHER and _ANTHROPIC.fullmatch(path)):
        error = {"type": anthropic_error(status.http), "message": refusal.message}
        document: object = {"type": "error", "error": error}
    elif form in _OPENAI or (form is Form.OTHER and path.startswith("/v1/")):
        document = {
            "error": {
                "message": refusal.message,
                "type": status.openai,
                "param": None,
                "code": reason,
            }
        }
    else:
        document = {"error": refusal.message}
    return Refuse(status.http, None, reason, orjson.dumps(document), tuple(extra))


def _retry_info(code: int, message: str, retry_s: int) -> str:
    """Return the value of `grpc-status-details-bin` that says when to try again."""
    status = status_pb2.Status(code=code, message=message)
    status.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=retry_s)))
    return b64encode(status.SerializeToString()).rstrip(b"=").decode()


def leave(head: Head, form: Form, *, move: bool) -> Refuse:
    """Answer a request whose replica is found hung.

    Args:
        head: The request's head.
        form: Its form.
        move: Whether the proxy is to take it to another replica instead of sending the answer.
    """
    answer = refuse(HUNG, form, head.headers, head.path)
    if move:
        answer.headers += (_AGAIN,)
    return answer


def is_move(answer: Refuse) -> bool:
    """Return whether the proxy is to take the request to another replica."""
    return answer.headers[-1] == _AGAIN
