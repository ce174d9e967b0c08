"""OpenAI bodies, in the shapes its API reference documents."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.requests.forms.openai import MAX_MESSAGES, MAX_PARTS, read_openai
from ext_proc.requests.parsing.errors import BadRequest
from ext_proc.routing.values.request import Features, Form, Truncation

HEAD = Features(Form.OPENAI)
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 3000}}


def read(body, *, complete: bool = True, head: Features = HEAD) -> Features:
    data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    return read_openai(head.changed(), data, complete=complete)


def test_fields():
    """Model, session, limit and streaming are read."""
    features = read({"model": "m", "user": "u", "stream": True, "max_tokens": 5, "prompt": "p"})
    assert (features.model, features.session) == ("m", "u")
    assert (features.streaming, features.max_tokens, features.prompt) == (True, 5, b"p")


@pytest.mark.parametrize(
    ("members", "recomputed"),
    [
        ({"prompt": "p"}, False),
        ({"prompt": "p", "prompt_logprobs": 0}, True),
        ({"prompt": "p", "prompt_logprobs": None}, False),
        ({"prompt": "p", "echo": True}, False),
        ({"prompt": "p", "logprobs": 1}, False),
        ({"prompt": "p", "echo": True, "logprobs": 0}, True),
        ({"messages": [], "echo": True}, True),
        ({"messages": [], "echo": True, "top_logprobs": None}, False),
        ({"messages": [], "logprobs": True, "top_logprobs": 2}, False),
    ],
)
def test_what_needs_the_logits_of_the_prompt_is_recomputed(members, recomputed):
    """As vLLM does, which then reads nothing from its cache."""
    assert read(members).recomputed is recomputed


def test_session_and_salt():
    """The cache's key names the session before the user; the salt is bounded."""
    features = read({"user": "u", "prompt_cache_key": "k", "cache_salt": "s"})
    assert (features.session, features.salt) == ("k", "s")
    assert len(read({"cache_salt": "s" * 10_000}).salt) < 100
    assert read({"cache_salt": 5}).salt is None


@pytest.mark.parametrize(
    ("body", "plain", "truncation"),
    [
        ({"prompt": "x"}, False, None),
        ({"prompt": "x", "add_special_tokens": False}, True, None),
        ({"prompt": "x", "truncate_prompt_tokens": 9}, False, Truncation(9, True, False)),
        ({"input": "x", "truncate_prompt_tokens": 9}, False, Truncation(9, False, False)),
        ({"prompt": [1], "truncate_prompt_tokens": 9}, False, Truncation(9, True, True)),
        (
            {"prompt": "x", "truncate_prompt_tokens": 9, "truncation_side": "right"},
            False,
            Truncation(9, False, True),
        ),
        ({"prompt": "x", "truncate_prompt_tokens": -1}, False, None),
        ({"prompt": "x", "truncate_prompt_tokens": "9"}, False, None),
    ],
)
def test_what_the_engine_makes_of_a_text(body, plain, truncation):
    """Options of vLLM's; -1 is the model's length, which prompts seldom reach."""
    found = read(json.dumps(body).encode())
    assert (found.plain_text, found.truncation) == (plain, truncation)


def test_newer_limit_wins():
    """``max_completion_tokens`` replaces ``max_tokens``."""
    assert read({"max_completion_tokens": 7, "max_tokens": 5}).max_tokens == 7


def test_model_of_the_header_is_kept_where_the_body_names_none():
    """The body's model wins; the header's is used without one."""
    head = Features(Form.OPENAI, model="header")
    assert read({"prompt": "p"}, head=head).model == "header"
    assert read({"model": "body"}, head=head).model == "body"


@pytest.mark.parametrize(
    ("value", "prompt"),
    [
        ("a", b"a"),
        (["a", "b"], b"a\0b"),
        ([1, 2], struct.pack("<2I", 1, 2)),
        ([[1], [2, 3]], struct.pack("<3I", 1, 2, 3)),
        ([], None),
        ([-1], None),
        ([1.5], None),
        (5, None),
        (None, None),
    ],
)
@pytest.mark.parametrize("key", ["prompt", "input"])
def test_prompt_shapes(key, value, prompt):
    """A prompt or input is a text, texts, tokens or arrays of them."""
    assert read({key: value}).prompt == prompt


def test_key_order_does_not_matter():
    """The order of a message's members does not change the prompt."""
    one = read({"messages": [{"role": "user", "content": "hi", "name": "n", "x": 1}]})
    two = read({"messages": [{"x": 1, "name": "n", "content": "hi", "role": "user"}]})
    assert one.prompt == two.prompt


@pytest.mark.parametrize(
    "other",
    [
        {"role": "system", "content": "hi"},
        {"role": "user", "content": "ho"},
        {"role": "user", "content": "hi", "tool_calls": [1]},
        {"role": "user"},
    ],
)
def test_messages_that_differ_differ(other):
    """Role, content and other members all count."""
    message = {"role": "user", "content": "hi"}
    assert read({"messages": [message]}).prompt != read({"messages": [other]}).prompt


def test_images_are_hashed_and_not_stored():
    """Parts that are not text cost a digest, and different ones differ."""
    parts = [{"type": "text", "text": "what is it"}, IMAGE]
    prompt = read({"messages": [{"role": "user", "content": parts}]}).prompt
    assert len(prompt) < 64
    parts = [parts[0], {"type": "image_url", "image_url": {"url": "other"}}]
    assert read({"messages": [{"role": "user", "content": parts}]}).prompt != prompt


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "OpenAI request"),
        (b"[]", "must be a JSON object"),
        ({"model": 5}, "`model` must be a string"),
        ({"model": "m" * 257}, "at most 256"),
        ({"messages": "hi"}, "`messages` must be an array"),
        ({"messages": ["hi"]}, r"`messages\[0\]` must be an object"),
        ({"messages": [{}] * (MAX_MESSAGES + 1)}, "more than 4096 messages"),
        ({"messages": [{"content": [{}] * (MAX_PARTS + 1)}]}, "more than 1024 parts"),
        (b'{"messages":[{"x":' + b"[" * 300 + b"]" * 300 + b"}]}", "nests too deep"),
    ],
)
def test_bad_bodies(body, words):
    """Each kind of damage has its own clear error."""
    with pytest.raises(BadRequest, match=words):
        read(body)


TEXT = st.text(max_size=8)
PART = st.builds(lambda text: {"type": "text", "text": text}, TEXT) | st.just(IMAGE)
CONTENT = TEXT | st.lists(PART, max_size=3) | st.none()
MESSAGE = st.permutations(["role", "content", "name"]).flatmap(
    lambda keys: st.fixed_dictionaries({key: CONTENT if key == "content" else TEXT for key in keys})
)


@given(st.permutations(["model", "messages", "user"]), st.lists(MESSAGE, max_size=4), st.data())
def test_every_cut_chat_is_a_prefix(keys, messages, data):
    """The prompt of every first part is a prefix of the prompt, and no name is cut."""
    values = {"model": "the-model", "messages": messages, "user": "user-1"}
    body = json.dumps({key: values[key] for key in keys}).encode()
    end = data.draw(st.integers(0, len(body)))
    whole, part = read(body), read(body[:end], complete=False)
    assert whole.prompt.startswith(part.prompt or b"")
    assert part.model in (None, "the-model")
    assert part.session in (None, "user-1")
    if part.prompt is not None and part.prompt != whole.prompt:
        assert part.prompt_is_partial
