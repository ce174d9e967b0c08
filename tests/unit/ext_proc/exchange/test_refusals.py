"""Refusals in the caller's dialect."""

from __future__ import annotations

import json
from base64 import b64decode

import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from ext_proc.exchange.refusals import refuse
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from ext_proc.routing.values.request import Form

GRPC = {"content-type": "application/grpc+proto"}


@pytest.mark.parametrize(
    ("kind", "status", "grpc_status", "retry"),
    [
        (RefusalKind.BAD_REQUEST, 400, 3, False),
        (RefusalKind.UNKNOWN_POOL, 404, 5, False),
        (RefusalKind.UNKNOWN_MODEL, 404, 5, False),
        (RefusalKind.UNKNOWN_VERSION, 404, 5, False),
        (RefusalKind.BAD_SHAPE, 400, 3, False),
        (RefusalKind.TOO_DEEP, 400, 3, False),
        (RefusalKind.TRAILERS, 400, 3, False),
        (RefusalKind.TOO_MANY_TOKENS, 400, 3, False),
        (RefusalKind.HEADERS_TOO_LARGE, 431, 8, False),
        (RefusalKind.TOO_LARGE, 413, 8, False),
        (RefusalKind.SATURATED, 429, 8, True),
        (RefusalKind.QUEUE_FULL, 429, 8, True),
        (RefusalKind.DEADLINE_UNMET, 429, 8, True),
        (RefusalKind.DEADLINE_PASSED, 504, 4, False),
        (RefusalKind.NO_ENDPOINTS, 503, 14, True),
        (RefusalKind.DEADLY_REQUEST, 422, 3, False),
        (RefusalKind.SUSPECT_WAITS, 503, 14, True),
    ],
)
def test_statuses(kind, status, grpc_status, retry):
    """Each kind has an HTTP status, a gRPC status, its reason, and a retry delay if it applies."""
    http = refuse(Refusal(kind, "why"), Form.GENERATE, {})
    assert (http.status, http.grpc_status, http.reason) == (status, None, kind.value)
    assert ("x-tidegate-reason", kind.value) in http.headers
    assert (("retry-after", "1") in http.headers) is retry
    rpc = refuse(Refusal(kind, "why"), Form.GRPC_INFER, GRPC)
    assert (rpc.status, rpc.grpc_status, rpc.body) == (status, grpc_status, b"why")


def test_a_refusal_says_when_to_come_again():
    """The expected wait is rounded up; a limit has fields of its own, and gRPC has its details."""
    refusal = Refusal(RefusalKind.SATURATED, "why", wait_s=2.2, limit=6)
    told = dict(refuse(refusal, Form.GENERATE, {}).headers)
    assert told["retry-after"] == "3"
    assert told["ratelimit"] == '"replicas";r=0;t=3'
    assert told["ratelimit-policy"] == '"replicas";q=6;qu="concurrent-requests"'
    details = dict(refuse(refusal, Form.GRPC_INFER, GRPC).headers)["grpc-status-details-bin"]
    status = Status.FromString(b64decode(details + "=" * (-len(details) % 4)))
    assert (status.code, status.message) == (8, "why")
    info = RetryInfo()
    assert status.details[0].Unpack(info)
    assert info.retry_delay.seconds == 3


def test_other_calls_below_v1_get_openais_error():
    """A client of OpenAI's API reads no other shape, whatever it called."""
    refusal = Refusal(RefusalKind.UNKNOWN_MODEL, "no such model")
    made = refuse(refusal, Form.OTHER, {}, "/v1/rerank")
    assert json.loads(made.body)["error"]["code"] == "unknown-model"
    for form, path in ((Form.OTHER, "/score"), (Form.OTHER, "/v10/x"), (Form.GENERATE, "/v1/x")):
        assert json.loads(refuse(refusal, form, {}, path).body) == {"error": "no such model"}


def test_a_malformed_message_is_an_internal_error():
    """Triton answers bytes that are no message with INTERNAL; over HTTP it stays a 400."""
    refusal = Refusal(RefusalKind.BAD_REQUEST, "why", malformed=True)
    rpc = refuse(refusal, Form.GRPC_INFER, GRPC)
    assert (rpc.status, rpc.grpc_status) == (400, 13)
    assert refuse(refusal, Form.GRPC_INFER, {}).grpc_status is None


def test_triton_dialect():
    """Triton's clients read ``error``."""
    made = refuse(Refusal(RefusalKind.SATURATED, 'say "no"'), Form.HTTP_INFER, {})
    assert json.loads(made.body) == {"error": 'say "no"'}
    assert ("content-type", "application/json") in made.headers


def test_openai_dialect():
    """OpenAI's clients read an error object with message, type and code."""
    made = refuse(Refusal(RefusalKind.UNKNOWN_MODEL, "no such model"), Form.OPENAI, {})
    assert json.loads(made.body)["error"] == {
        "message": "no such model",
        "type": "invalid_request_error",
        "param": None,
        "code": "unknown-model",
    }


@pytest.mark.parametrize(
    ("kind", "type_"),
    [
        (RefusalKind.UNKNOWN_MODEL, "not_found_error"),
        (RefusalKind.BAD_REQUEST, "invalid_request_error"),
        (RefusalKind.TOO_LARGE, "request_too_large"),
        (RefusalKind.SATURATED, "rate_limit_error"),
        (RefusalKind.NO_ENDPOINTS, "overloaded_error"),
    ],
)
def test_anthropic_dialect(kind, type_):
    """Its clients choose their exception by status, and show type and message."""
    for form, path in ((Form.MESSAGES, ""), (Form.OTHER, "/v1/messages/count_tokens?beta=true")):
        made = refuse(Refusal(kind, "why"), form, {}, path)
        assert json.loads(made.body) == {
            "type": "error",
            "error": {"type": type_, "message": "why"},
        }


@pytest.mark.parametrize("form", [Form.RESPONSES, Form.SCORE, Form.SGLANG])
def test_engines_own_calls_get_openais_error(form):
    """Engines answer them so themselves."""
    made = refuse(Refusal(RefusalKind.UNKNOWN_MODEL, "why"), form, {})
    assert json.loads(made.body)["error"]["code"] == "unknown-model"
