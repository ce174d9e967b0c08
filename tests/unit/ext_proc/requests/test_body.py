"""The form's reader is picked, content codings are undone, sessions are found."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.requests import BadRequest, prompt_blocks, read_body, read_head, session_of
from ext_proc.requests.forms.http_infer import LENGTH_HEADER
from ext_proc.routing.values.request import Features, Form

PATHS = {
    Form.GRPC_INFER: "/inference.GRPCInferenceService/ModelInfer",
    Form.GRPC_STREAM: "/inference.GRPCInferenceService/ModelStreamInfer",
    Form.HTTP_INFER: "/v2/models/m/infer",
    Form.GENERATE: "/v2/models/m/generate",
    Form.GENERATE_STREAM: "/v2/models/m/generate_stream",
    Form.OPENAI: "/v1/completions",
}


def test_other_bodies_are_not_read():
    """The body of a request that is not an inference yields nothing."""
    head = read_head("POST", "/v2/repository/index", {})
    assert read_body(head, {}, b"\xff", complete=True) == head


@pytest.mark.parametrize(
    ("coding", "compress"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("identity", bytes)],
)
@pytest.mark.parametrize("form", [Form.HTTP_INFER, Form.GENERATE, Form.OPENAI])
def test_content_codings(form, coding, compress):
    """Compressed JSON is read like plain JSON; how much a Triton inflates is known."""
    head = read_head("POST", PATHS[form], {})
    inputs = b'[{"name": "prompt", "datatype": "BYTES", "shape": [1], "data": ["hello"]}]'
    body = b'{"prompt": "hello", "inputs": ' + inputs + b"}"
    headers = {"content-encoding": coding}
    features = read_body(head, headers, compress(body), complete=True)
    inflated = coding != "identity" and form is not Form.OPENAI  # engines inflate nothing
    assert (features.prompt, features.inflated_bytes) == (b"hello", len(body) if inflated else None)


def test_unknown_content_coding_says_nothing():
    """A body in another coding leaves everything unknown."""
    head = read_head("POST", PATHS[Form.OPENAI], {})
    assert read_body(head, {"content-encoding": "br"}, b"xyz", complete=True) == head


@pytest.mark.parametrize("form", [Form.HTTP_INFER, Form.GENERATE])
def test_a_content_coding_that_triton_rejects_is_a_bad_request(form):
    """Triton answers 501 to it, which is the caller's fault."""
    head = read_head("POST", PATHS[form], {})
    with pytest.raises(BadRequest, match="content coding"):
        read_body(head, {"content-encoding": "br"}, b"xyz", complete=True)


def test_a_bomb_is_read_up_to_the_bound():
    """A body that grows beyond the bound is read as a first part."""
    head = read_head("POST", PATHS[Form.GENERATE], {})
    body = gzip.compress(b'{"prompt": "' + b"x" * (8 * 2**20) + b'"}')
    features = read_body(head, {"content-encoding": "gzip"}, body, complete=True)
    assert features.prompt_is_partial
    assert len(features.prompt) < 2**20


def test_session():
    """The header names the session, or else the body's user does."""
    features = Features(Form.OPENAI, session="body")
    assert session_of(features, {"x-session-id": "header"}, "x-session-id") == "header"
    assert session_of(features, {"x-session-id": ""}, "x-session-id") == "body"
    assert session_of(features, {"other": "header"}, "x-session-id") == "body"
    assert session_of(Features(Form.GENERATE), {}, "x-session-id") is None


@settings(max_examples=300)
@given(
    st.sampled_from(list(PATHS)),
    st.binary(max_size=80) | st.text(alphabet='{}[]",:abc \\01', max_size=60).map(str.encode),
    st.booleans(),
    st.dictionaries(
        st.sampled_from(["content-encoding", "grpc-encoding", LENGTH_HEADER]),
        st.sampled_from(["gzip", "deflate", "0", "2", "²", "x", ""]),
    ),
)
def test_only_bad_request_escapes(form, body, complete, headers):
    """Random bytes with random headers are read or refused."""
    head = read_head("POST", PATHS[form], headers)
    try:
        features = read_body(head, headers, body, complete=complete)
    except BadRequest:
        return
    prompt_blocks(features, 16)
