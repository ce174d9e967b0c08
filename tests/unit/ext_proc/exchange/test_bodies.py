"""How much of a body a decision waits for."""

from __future__ import annotations

import pytest

from ext_proc.exchange import BodySending, Head
from ext_proc.exchange.known import FIRST_PART_BYTES, has_first_part, needs_body
from ext_proc.routing.values.request import Form
from support.streams import llm


def head(sent, *, end=False):
    return Head("POST", "/x", {}, end_of_stream=end, request_body=sent)


@pytest.mark.parametrize(
    ("sent", "form", "body", "waits"),
    [
        (BodySending.NONE, Form.GENERATE, "peek", True),
        (BodySending.NONE, Form.GENERATE, "none", False),
        (BodySending.BUFFERED, Form.OPENAI, "full", True),
        (BodySending.DUPLEX, Form.GRPC_INFER, "peek", True),
        (BodySending.DUPLEX, Form.GRPC_INFER, "none", False),
        (BodySending.STREAMED, Form.GRPC_INFER, "peek", False),
        (BodySending.NONE, Form.GRPC_STREAM, "peek", False),
        (BodySending.BUFFERED, Form.GRPC_STREAM, "full", False),
        (BodySending.DUPLEX, Form.GRPC_STREAM, "none", True),
    ],
)
def test_who_waits(sent, form, body, waits):
    """Unary inference waits if its pool reads bodies; a stream waits only in duplex."""
    assert needs_body(head(sent), form, llm(body=body)) is waits
    assert not needs_body(head(sent, end=True), form, llm(body=body))


def test_an_unknown_pool_is_worth_the_wait():
    """Only the body can name the pool."""
    assert needs_body(head(BodySending.NONE), Form.OPENAI, None)


@pytest.mark.parametrize(
    ("held", "form", "is_enough"),
    [
        (b"", Form.GRPC_STREAM, False),
        (b"\0\0\0\0", Form.GRPC_STREAM, False),
        (b"\0\0\0\0\0", Form.GRPC_STREAM, True),
        (b"\0\0\0\0\2x", Form.GRPC_INFER, False),
        (b"\0\0\0\0\2xy", Form.GRPC_INFER, True),
        (b"\0\0\0\0\2xyz", Form.GRPC_INFER, True),
        (b"\0\0\0\0\2xyz", Form.GENERATE, False),
        (b"x" * (FIRST_PART_BYTES - 1), Form.GENERATE, False),
        (b"x" * FIRST_PART_BYTES, Form.GENERATE, True),
        (b"\xff" * FIRST_PART_BYTES, Form.GRPC_STREAM, True),
    ],
)
def test_what_is_enough(held, form, is_enough):
    """The first gRPC message, or the bound, which a wrong length cannot exceed."""
    assert has_first_part(bytearray(held), form) is is_enough
