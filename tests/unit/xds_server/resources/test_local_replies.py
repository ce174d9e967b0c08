"""Envoy's own answers, by the caller's dialect."""

from __future__ import annotations

import json
import re

import pytest
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)
from google.protobuf import json_format

from ext_proc.exchange.refusals import refuse
from ext_proc.requests import read_head
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from tidegate_api.paths import (
    ANTHROPIC_PATHS,
    MODEL_ENDINGS,
    OPENAI_PATHS,
    SCORE_PATHS,
    SGLANG_PATH,
)
from xds_server.resources.local_replies import local_replies

MAPPERS = http_connection_manager_pb2.HttpConnectionManager.FromString(
    local_replies()
).local_reply_config.mappers


def applies(one, status: int, headers: dict[str, str], details: str) -> bool:
    """Evaluate a filter as Envoy does, for the filters that are used here."""
    kind = one.WhichOneof("filter_specifier")
    if kind == "and_filter":
        return all(applies(each, status, headers, details) for each in one.and_filter.filters)
    if kind == "or_filter":
        return any(applies(each, status, headers, details) for each in one.or_filter.filters)
    if kind == "status_code_filter":
        comparison = one.status_code_filter.comparison
        wanted = comparison.value.default_value
        return status >= wanted if comparison.op == comparison.GE else status == wanted
    if kind == "header_filter":
        header = one.header_filter.header
        value = headers.get(header.name, "")
        return re.fullmatch(header.string_match.safe_regex.regex, value) is not None
    expression = json_format.MessageToDict(one)["extensionFilter"]["typedConfig"]["expression"]
    own = re.fullmatch(r"response.code_details == '(\w+)'", expression)
    if own is not None:
        return details == own[1]
    assert expression == "response.code_details.startsWith('tidegate_')"
    return details.startswith("tidegate_")


def answer(status: int, path: str = "/x", kind: str = "", details: str = "") -> dict:
    """Return the first mapper that applies, as a mapping; empty where none does."""
    headers = {":path": path, "content-type": kind}
    for mapper in MAPPERS:
        if applies(mapper.filter, status, headers, details):
            return json_format.MessageToDict(mapper)
    return {}


def added(mapper: dict) -> dict[str, str]:
    """Return the headers that a mapper adds."""
    return {each["header"]["key"]: each["header"]["value"] for each in mapper["headersToAdd"]}


def test_the_pickers_refusals_pass_unchanged() -> None:
    """They are in the caller's dialect already."""
    for kind in ("", "application/grpc"):
        decided = answer(404, "/v1/completions", kind, "tidegate_unknown_model")
        assert set(decided) == {"filter"}


def test_good_answers_of_envoys_own_pass_unchanged() -> None:
    """Liveness is answered with 200 by Envoy itself."""
    for path in ("/v2/health/live", "/v1/models"):
        assert answer(200, path) == {}


@pytest.mark.parametrize("kind", ["application/grpc", "application/grpc+proto"])
def test_grpc_gets_text(kind: str) -> None:
    """A JSON object in `grpc-message` would be shown to people as it is."""
    for status in (200, 400, 404, 413, 500, 503):
        body = answer(status, "/v1/completions", kind)["bodyFormatOverride"]
        assert body == {"textFormatSource": {"inlineString": "%LOCAL_REPLY_BODY%"}}


def test_grpc_statuses_are_those_of_the_picker() -> None:
    """Envoy alone would say UNKNOWN for 413 and 408."""
    for status, code in ((400, "3"), (408, "4"), (413, "8"), (429, "8")):
        assert added(answer(status, kind="application/grpc"))["grpc-status"] == code
        assert "grpc-status" not in added(answer(status))


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/anything",
        "/v1?a=b",
        "/v1/completions?x=1",
        "/proxy/v1/chat/completions",
        "/proxy/v1/embeddings",
        "/proxy/v1/responses",
        "/proxy/v1/rerank",
        "/v2/rerank",
        "/score?x=1",
        "/generate",
    ],
)
def test_openai_paths_get_openais_error(path: str) -> None:
    """Also paths under `/v1` that no pool serves."""
    for status, kind in ((404, "invalid_request_error"), (429, "rate_limit_error")):
        error = answer(status, path)["bodyFormatOverride"]["jsonFormat"]["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == kind
    assert answer(503, path)["bodyFormatOverride"]["jsonFormat"]["error"]["type"] == "server_error"
    assert answer(502, path)["bodyFormatOverride"]["jsonFormat"]["error"]["type"] == "server_error"


@pytest.mark.parametrize(
    "path", ["/v1/messages", "/a/v1/messages?b=c", "/v1/messages/count_tokens"]
)
def test_anthropic_paths_get_anthropics_error(path: str) -> None:
    """With the types that Anthropic's reference gives each status."""
    for status, kind in (
        (400, "invalid_request_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
    ):
        assert answer(status, path)["bodyFormatOverride"]["jsonFormat"] == {
            "type": "error",
            "error": {"type": kind, "message": "%LOCAL_REPLY_BODY%"},
        }


def test_no_pattern_is_too_large_for_envoy() -> None:
    """Envoy refuses the listener for one of more than 100 instructions: 118 characters were 107."""
    assert max(map(len, [ANTHROPIC_PATHS, *OPENAI_PATHS])) < 80


@pytest.mark.parametrize("path", [*MODEL_ENDINGS, *SCORE_PATHS, SGLANG_PATH])
def test_envoy_and_the_picker_answer_a_path_in_one_dialect(path: str) -> None:
    """A caller cannot know which of them refused."""
    form = read_head("POST", path, {}).form
    ours = json.loads(refuse(Refusal(RefusalKind.NO_ENDPOINTS, "why"), form, {}, path).body)
    envoys = answer(503, path)["bodyFormatOverride"]["jsonFormat"]
    assert envoys.keys() == ours.keys()
    assert envoys["error"].keys() == ours["error"].keys()
    assert envoys["error"]["type"] == ours["error"]["type"]


@pytest.mark.parametrize("path", ["/", "/v2/models/m/infer", "/v10", "/v2/v1/x", "/a/generate"])
def test_other_paths_get_tritons_error(path: str) -> None:
    """``{"error": "..."}``, as tritonclient reads it."""
    for status in (400, 404, 413, 500, 503):
        body = answer(status, path)["bodyFormatOverride"]
        assert body["jsonFormat"] == {"error": "%LOCAL_REPLY_BODY%"}


def test_a_caller_may_try_again_after_a_second() -> None:
    """Where waiting may help, and only there."""
    for status in range(400, 505):
        found = answer(status)
        again = "headersToAdd" in found and added(found).get("retry-after")
        assert again == ("1" if status in {429, 503} else (again and None))


def test_empty_answers_get_a_text() -> None:
    """Envoy's own 400 and 404 have no body."""
    for status in (400, 404):
        assert answer(status)["body"]["inlineString"]


def test_an_upgrade_is_told_from_a_call_to_one_replica() -> None:
    """Both are 403, and the latter has a text of its own."""
    assert added(answer(403, details="upgrade_failed")) == {"x-tidegate-reason": "not-allowed"}
    refused = answer(403, details="direct_response")
    assert added(refused) == {"x-tidegate-reason": "one-replica"}
    assert "body" not in refused
