"""Bodies that the real OpenAI client writes are read as they were put in."""

from __future__ import annotations

import itertools
import json
import struct
from dataclasses import dataclass, field

import httpx
import openai
import pytest

from ext_proc.requests import prompt_blocks, read_body, read_head, session_of
from ext_proc.routing.values.request import Features, Form

IMAGE = "data:image/png;base64," + "QUJD" * 2000
TURNS = [
    {"role": "system", "content": "You read tide tables. " * 40},
    {"role": "user", "content": 'Wann ist Ebbe? \u2013 \U0001f30a "bitte"\n' * 20},
    {"role": "assistant", "content": "Um drei. " * 40},
    {"role": "user", "content": "Danke. " * 40},
]
TOOL = {
    "type": "function",
    "function": {"name": "tide", "parameters": {"type": "object", "properties": {}}},
}


@dataclass
class Wire:
    """What a client sent, and the client."""

    requests: list[httpx.Request] = field(default_factory=list)

    def client(self) -> openai.OpenAI:
        def answer(request: httpx.Request) -> httpx.Response:
            self.requests.append(request)
            return httpx.Response(503, json={"error": {"message": "recorded"}})

        transport = httpx.Client(transport=httpx.MockTransport(answer))
        return openai.OpenAI(
            api_key="none", base_url="http://gateway/v1", max_retries=0, http_client=transport
        )

    def features(self, part: float = 1.0) -> Features:
        """Read the last request, or its first part."""
        request = self.requests[-1]
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = request.content[: int(len(request.content) * part)]
        features = read_head(request.method, request.url.raw_path.decode(), headers)
        assert features.form in (Form.OPENAI, Form.RESPONSES)
        return read_body(features, headers, body, complete=part == 1.0)


@pytest.fixture
def wire():
    """Record requests."""
    return Wire()


def chat(wire: Wire, messages, part: float = 1.0, **options) -> Features:
    with pytest.raises(openai.InternalServerError):
        wire.client().chat.completions.create(model="llama", messages=messages, **options)
    return wire.features(part)


def test_chat(wire):
    """A chat says model, session, limit, streaming and salt."""
    features = chat(
        wire,
        TURNS,
        stream=True,
        user="ann",
        max_completion_tokens=99,
        tools=[TOOL],
        extra_body={"cache_salt": "tenant"},
        extra_headers={"X-Session-Id": "s-1"},
    )
    assert (features.model, features.session, features.salt) == ("llama", "ann", "tenant")
    assert (features.streaming, features.max_tokens) == (True, 99)
    headers = {name.lower(): value for name, value in wire.requests[-1].headers.items()}
    assert session_of(features, headers, "x-session-id") == "s-1"
    for turn in TURNS:
        assert turn["content"].encode() in features.prompt


def test_a_conversation_extends_its_chain(wire):
    """Appended turns keep all hashes of the turns before, tools or not."""
    blocks = [
        prompt_blocks(chat(wire, TURNS[:count], tools=[TOOL] * (count % 2)), 64)
        for count in range(1, len(TURNS) + 1)
    ]
    for shorter, longer in itertools.pairwise(blocks):
        assert len(shorter) < len(longer)
        assert longer[: len(shorter)] == shorter


def test_a_chat_read_in_part(wire):
    """The first part of a chat gives the first part of its prompt; its model stands behind."""
    whole = chat(wire, TURNS)
    part = wire.features(0.5)
    assert whole.prompt.startswith(part.prompt)
    assert (part.prompt_is_partial, part.model) == (True, None)
    names = list(json.loads(wire.requests[-1].content))
    assert names.index("messages") < names.index("model")


def test_multimodal_chat(wire):
    """Images count by their digest: the same image is the same prompt, another is another."""

    def ask(url: str) -> Features:
        parts = [
            {"type": "text", "text": "What is this? " * 20},
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": "And why? " * 20},
        ]
        return chat(wire, [{"role": "user", "content": parts}])

    one, two, three = ask(IMAGE), ask(IMAGE), ask(IMAGE.replace("QUJD", "QUJE"))
    assert one.prompt == two.prompt
    assert len(one.prompt) < 1000
    shared = [a == b for a, b in zip(prompt_blocks(one, 64), prompt_blocks(three, 64), strict=True)]
    assert (shared[0], shared[-1]) == (True, False)


def test_tool_calls(wire):
    """Messages without text or with tool calls are part of the chain."""
    call = {"id": "c", "type": "function", "function": {"name": "tide", "arguments": "{}"}}
    one = chat(wire, [*TURNS[:2], {"role": "assistant", "content": None, "tool_calls": [call]}])
    result = {"role": "tool", "tool_call_id": "c", "content": "3 m"}
    two = chat(
        wire,
        [*TURNS[:2], {"role": "assistant", "content": None, "tool_calls": [call]}, result],
    )
    assert two.prompt.startswith(one.prompt)
    assert b"3 m" in two.prompt


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("tide", b"tide"),
        (["tide", "moon"], b"tide\0moon"),
        ([5, 6, 7], struct.pack("<3I", 5, 6, 7)),
        ([[5, 6], [7]], struct.pack("<3I", 5, 6, 7)),
    ],
)
def test_completions(wire, prompt, expected):
    """A completion's prompt is read in all four shapes."""
    with pytest.raises(openai.InternalServerError):
        wire.client().completions.create(model="llama", prompt=prompt, max_tokens=7, stream=True)
    features = wire.features()
    assert (features.model, features.prompt, features.max_tokens) == ("llama", expected, 7)
    assert features.streaming


@pytest.mark.parametrize("value", ["tide", ["tide", "moon"], [5, 6]])
def test_embeddings(wire, value):
    """Embeddings name their model; their input is the prompt."""
    with pytest.raises(openai.InternalServerError):
        wire.client().embeddings.create(model="embedder", input=value)
    features = wire.features()
    assert (features.model, features.max_tokens, features.streaming) == ("embedder", None, False)
    assert features.prompt is not None


def respond(wire: Wire, messages, **options) -> Features:
    with pytest.raises(openai.InternalServerError):
        wire.client().responses.create(model="llama", input=messages, **options)
    return wire.features()


def test_responses(wire):
    """A response says model, session, limit and streaming, and is the prompt of the same chat."""
    features = respond(wire, TURNS[1:], instructions=TURNS[0]["content"], max_output_tokens=9)
    assert (features.form, features.model, features.max_tokens) == (Form.RESPONSES, "llama", 9)
    assert features.prompt == chat(wire, TURNS).prompt
    named = respond(wire, "hi", prompt_cache_key="k", user="u", stream=True)
    assert (named.session, named.streaming) == ("k", True)


def test_the_client_writes_the_instructions_behind_the_input(wire):
    """So a first part that ends in the input has the turns alone."""
    respond(wire, TURNS[1:], instructions=TURNS[0]["content"])
    names = list(json.loads(wire.requests[-1].content))
    assert names.index("input") < names.index("instructions")
    assert wire.features(0.3).prompt.startswith(TURNS[1]["content"][:100].encode())
