"""Bodies whose end Envoy may lose."""

from __future__ import annotations

import pytest

from ext_proc.exchange.known import loses_end
from ext_proc.exchange.messages import Body, Head
from tidegate_api.pools import LEAST_PEEK_BYTES

PATH = "/v1/completions"
LONG = b"x" * LEAST_PEEK_BYTES
TEXT = b'{"id":"' + LONG + b'","inputs":[{"name":"x","parameters":{"binary_data_size":4}}]}'
PROMPT = b'{"prompt": "' + LONG + b'"}'
BINARY = {"inference-header-content-length": str(len(TEXT))}


@pytest.mark.parametrize(
    ("headers", "chunk", "lost"),
    [
        ({}, PROMPT, True),
        ({}, PROMPT + b"\r\n", True),
        ({}, PROMPT[:-1], False),
        ({}, PROMPT[:-2] + b"}", False),
        ({}, b'{"prompt": "short"}', False),
        ({"content-length": "5000"}, PROMPT, False),
        (BINARY, TEXT + b"1234", True),
        (BINARY, TEXT + b"12", False),
        ({**BINARY, "inference-header-content-length": "9" * 30}, TEXT, True),
        ({}, b'"' + b"x" * 300_000 + b'"}', False),
    ],
)
def test_a_part_that_is_the_whole_loses_its_end(headers, chunk, lost) -> None:
    """Where no length says so, and the proxy does not."""
    head = Head("POST", PATH, headers, end_of_stream=False)
    assert loses_end(head, Body(chunk, end_of_stream=False)) is lost


def test_an_end_that_is_told_is_not_lost() -> None:
    """The usual case costs nothing."""
    head = Head("POST", PATH, {}, end_of_stream=False)
    assert not loses_end(head, Body(PROMPT, end_of_stream=True))


@pytest.mark.parametrize(
    ("protocol", "lost"),
    [(None, True), ("HTTP/1.1", True), ("HTTP/2", False), ("HTTP/3", False), ("HTTP/4", True)],
)
def test_a_protocol_with_frames_keeps_the_end(protocol, lost) -> None:
    """Where the proxy does not tell it, it may be any."""
    head = Head("POST", PATH, {}, end_of_stream=False, protocol=protocol)
    assert loses_end(head, Body(PROMPT, end_of_stream=False)) is lost
