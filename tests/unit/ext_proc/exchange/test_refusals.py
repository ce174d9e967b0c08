"""Refusals in the caller's dialect."""

from __future__ import annotations

import json

import pytest

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
