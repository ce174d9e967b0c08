"""What a real Triton answers to clients' mistakes, and what the picker makes of the same requests.

See ``support.record_mistakes``.
"""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from ext_proc.requests import BadRequest, UnsoundRequest, read_body, read_head
from ext_proc.routing.values.refusal import RefusalKind
from ext_proc.routing.values.request import Features
from support.mistakes.every import MISTAKES
from support.record_mistakes import packed, unpacked
from support.streams import GRPC_INFER

FILE = Path(__file__).parent / "fixtures" / "triton-2.51.0" / "mistakes.json"
RECORDED: list[dict[str, Any]] = json.loads(FILE.read_text())["mistakes"]
FIRST_SERVER_ERROR = 500
GRPC_SERVER_ERRORS = frozenset({2, 12, 13, 14})
"""UNKNOWN, UNIMPLEMENTED, INTERNAL, UNAVAILABLE."""


def read(mistake: dict[str, Any]) -> Features:
    """Read a recorded request as the picker does."""
    body = unpacked(mistake["body"])
    headers = {name.lower(): value for name, value in mistake["headers"].items()}
    if mistake["path"] == GRPC_INFER:
        body = struct.pack(">BI", 0, len(body)) + body
    features = read_head("POST", mistake["path"], headers)
    return read_body(features, headers, body, complete=True)


def failed(mistake: dict[str, Any]) -> bool:
    answer = mistake["answer"]
    status, grpc_status = answer.get("status", 0), answer.get("grpc_status", 0)
    return status >= FIRST_SERVER_ERROR or grpc_status in GRPC_SERVER_ERRORS


def harmed(mistake: dict[str, Any]) -> bool:
    """Return whether the server, or the backend's process, ended."""
    return "died" in mistake["answer"] or "not healthy" in str(mistake["answer"])


def named(mistakes: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("mistake", mistakes, ids=[each["name"] for each in mistakes])


def test_the_recording_has_every_mistake():
    """The requests are those that the recorder sends now."""
    now = [each.recorded(packed(each.body)) for each in MISTAKES]
    assert [{key: each[key] for key in now[0]} for each in RECORDED] == now


@named([each for each in RECORDED if failed(each)])
def test_what_triton_answers_with_a_server_error_is_a_bad_request(mistake):
    """Such an answer is the caller's fault, so no replica may be blamed for it."""
    with pytest.raises(BadRequest):
        read(mistake)


@named([each for each in RECORDED if harmed(each)])
def test_what_ends_triton_is_unsound(mistake):
    """No replica may receive such a request."""
    with pytest.raises(UnsoundRequest):
        read(mistake)


@named([each for each in RECORDED if each["answer"].get("status") == 200])
def test_what_triton_serves_over_http_is_not_refused(mistake):
    """Depth is the exception: what Triton does with it depends on the place and the version."""
    with contextlib.suppress(BadRequest):
        try:
            read(mistake)
        except UnsoundRequest as error:
            if error.kind is not RefusalKind.TOO_DEEP:
                pytest.fail(str(error))


@named([each for each in RECORDED if each["answer"].get("grpc_status") == 0])
def test_what_triton_serves_over_grpc_is_readable(mistake):
    """A gRPC request that cannot be read may be refused, as only its body names the pool."""
    assert read(mistake).model is not None
