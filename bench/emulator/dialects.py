"""The APIs of an emulated replica: parsing of requests and encoding of tokens. Pure functions.

OpenAI's completions and chat completions in vLLM's form, and Triton's generate extension. The
responses of a dialect are prebuilt: their text does not matter, their framing does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import orjson

from bench.emulator.text import DEFAULT_OUTPUT, wished_output

MODEL: Final = "toy-llm"
WORD: Final = "tide "

_CHAT: Final = "/v1/chat/completions"
_COMPLETIONS: Final = "/v1/completions"


class BadRequestError(ValueError):
    """A body that an engine would reject; the message says why."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A parsed request."""

    prompt: bytes
    output: int
    stream: bool
    dialect: Dialect


@dataclass(frozen=True, slots=True)
class Dialect:
    """Encoded responses of one API."""

    piece: bytes
    """One server-sent event with a part of the answer."""
    last: bytes
    """End of a stream."""
    whole: bytes
    """Response without streaming."""


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def _openai(kind: str, piece: dict[str, Any], whole: dict[str, Any]) -> Dialect:
    base = {"id": "bench", "created": 0, "model": MODEL}
    chunk = {"object": f"{kind}.chunk" if kind == "chat.completion" else kind, **base}
    end = {"index": 0, "finish_reason": "stop", **{key: _emptied(piece[key]) for key in piece}}
    return Dialect(
        _event({**chunk, "choices": [{"index": 0, "finish_reason": None, **piece}]}),
        _event({**chunk, "choices": [end]}) + b"data: [DONE]\n\n",
        orjson.dumps(
            {
                "object": kind,
                **base,
                "choices": [{"index": 0, "finish_reason": "stop", **whole}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
        ),
    )


def _emptied(value: Any) -> Any:
    return {} if isinstance(value, dict) else ""


CHAT: Final = _openai(
    "chat.completion",
    {"delta": {"content": WORD}},
    {"message": {"role": "assistant", "content": WORD}},
)
COMPLETIONS: Final = _openai("text_completion", {"text": WORD}, {"text": WORD})
_GENERATED: Final = {"model_name": MODEL, "model_version": "1", "text_output": WORD}
GENERATE: Final = Dialect(_event(_GENERATED), b"", orjson.dumps(_GENERATED))


def read(path: str, body: bytes) -> Asked | None:
    """Parse a request; return ``None`` if the path is not a generation endpoint.

    Raises:
        BadRequestError: The body is invalid.
    """
    if path == _CHAT:
        fields = _fields(body)
        messages = fields.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadRequestError("messages: a list with at least one message is needed")
        text = "\n".join(_content(message) for message in messages)
        return _asked(text, fields, bool(fields.get("stream")), CHAT)
    if path == _COMPLETIONS:
        fields = _fields(body)
        return _asked(_text(fields, "prompt"), fields, bool(fields.get("stream")), COMPLETIONS)
    if path.startswith("/v2/models/") and path.endswith(("/generate", "/generate_stream")):
        fields = _fields(body)
        return _asked(_text(fields, "text_input"), fields, path.endswith("_stream"), GENERATE)
    return None


def output_tokens(prompt: bytes, most: Any) -> int:
    """Return the number of output tokens: as the prompt requests, at most the field's limit."""
    allowed = most if type(most) is int and most > 0 else None
    preferred = wished_output(prompt)
    if preferred is None:
        return allowed or DEFAULT_OUTPUT
    return preferred if allowed is None else min(preferred, allowed)


def _asked(text: str, fields: dict[str, Any], stream: bool, dialect: Dialect) -> Asked:
    prompt = text.encode()
    most = fields.get("max_completion_tokens", fields.get("max_tokens"))
    return Asked(prompt, output_tokens(prompt, most), stream, dialect)


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the body is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadRequestError("the body is no JSON object")
    return fields


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise BadRequestError(f"{name}: a text is needed")
    return value


def _content(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, str):
        raise BadRequestError("messages: each needs a content that is a text")
    return content
