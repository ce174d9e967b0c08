"""Bodies whose end Envoy may lose."""

from __future__ import annotations

import pytest

from ext_proc.exchange.known import loses_end
from ext_proc.exchange.messages import Body
from tidegate_api.pools import LEAST_PEEK_BYTES

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
    assert loses_end(headers, Body(chunk, end_of_stream=False)) is lost


def test_an_end_that_is_told_is_not_lost() -> None:
    """The usual case costs nothing."""
    assert not loses_end({}, Body(PROMPT, end_of_stream=True))
