"""The APIs of an emulated replica."""

from __future__ import annotations

from contextlib import suppress

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.emulator import dialects
from bench.emulator.dialects import BadRequestError

CHAT = "/v1/chat/completions"


def body(**fields: object) -> bytes:
    """Return a JSON body."""
    return orjson.dumps(fields)


def test_a_chat_is_its_messages_one_after_the_other() -> None:
    """A later turn extends the prompt of the earlier one."""
    first = [{"role": "user", "content": "one"}]
    both = [*first, {"role": "assistant", "content": "two"}]
    short, long = (dialects.read(CHAT, body(messages=each, stream=True)) for each in (first, both))
    assert short is not None
    assert long is not None
    assert long.prompt.startswith(short.prompt)
    assert short.stream


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "hello"}),
        ("/v2/models/toy-llm/generate", {"text_input": "hello"}),
        ("/v2/models/toy-llm/generate_stream", {"text_input": "hello"}),
    ],
)
def test_every_dialect_gives_the_prompt(path: str, fields: dict[str, str]) -> None:
    """The same text is the same prompt in each API."""
    asked = dialects.read(path, body(**fields))
    assert asked is not None
    assert asked.prompt == b"hello"
    assert asked.stream == path.endswith("_stream")


def test_an_answer_is_as_long_as_wished_and_at_most_as_allowed() -> None:
    """The prompt's request counts, up to the field's limit; without both, the API's default."""
    wish = b"Answer in 40 tokens."
    assert dialects.output_tokens(wish, None) == 40
    assert dialects.output_tokens(wish, 10) == 10
    assert dialects.output_tokens(b"hello", 10) == 10
    assert dialects.output_tokens(b"hello", None) == 16


def test_other_paths_are_not_taken() -> None:
    """Paths other than generation return ``None``."""
    assert dialects.read("/v1/embeddings", b"{}") is None


@given(st.sampled_from([CHAT, "/v1/completions", "/v2/models/m/generate"]), st.binary())
def test_any_bytes_are_read_or_refused(path: str, data: bytes) -> None:
    """A body is a request or a clear error, never anything else."""
    with suppress(BadRequestError):
        assert dialects.read(path, data) is not None
