"""Responses, messages, scores and SGLang's generate, in the shapes of their references."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.requests import read_body
from ext_proc.requests.parsing.errors import BadRequest
from ext_proc.requests.parsing.turns import MAX_PARTS, MAX_TURNS
from ext_proc.requests.parsing.values import MAX_PROMPT_BYTES
from ext_proc.routing.values.request import Features, Form

IMAGE = {"type": "image", "source": {"type": "base64", "data": "A" * 3000}}
TURNS = [
    {"role": "user", "content": "When is low tide? " * 9},
    {"role": "assistant", "content": "At three. " * 9},
    {"role": "user", "content": "And tomorrow? " * 9},
]


def read(form: Form, body, *, complete: bool = True) -> Features:
    data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    return read_body(Features(form), {}, data, complete=complete)


def test_fields_of_responses():
    """Model, session, salt, limit and streaming are read."""
    body = {
        "model": "m",
        "user": "u",
        "stream": True,
        "max_output_tokens": 5,
        "input": "p",
        "cache_salt": "s",
    }
    features = read(Form.RESPONSES, body)
    assert (features.model, features.session, features.salt) == ("m", "u", "s")
    assert (features.streaming, features.max_tokens) == (True, 5)
    assert read(Form.RESPONSES, {**body, "prompt_cache_key": "k"}).session == "k"


def test_fields_of_messages():
    """Anthropic's clients name the user, or the session, in `metadata`."""
    body = {
        "model": "m",
        "max_tokens": 5,
        "stream": True,
        "messages": TURNS,
        "metadata": {"user_id": "u"},
        "cache_salt": "s",
    }
    features = read(Form.MESSAGES, body)
    assert (features.model, features.session, features.salt) == ("m", "u", "s")
    assert (features.streaming, features.max_tokens) == (True, 5)
    assert read(Form.MESSAGES, {"metadata": ["u"]}).session is None


def test_a_conversation_has_the_same_blocks_in_all_forms():
    """A vLLM 0.32 counted 224 of 227 tokens as cached for either form after the other."""
    chat = {"model": "m", "messages": [{"role": "system", "content": "Be brief."}, *TURNS]}
    prompts = {
        read(Form.OPENAI, chat).prompt,
        read(Form.MESSAGES, {"model": "m", "messages": TURNS, "system": "Be brief."}).prompt,
        read(Form.RESPONSES, {"model": "m", "input": TURNS, "instructions": "Be brief."}).prompt,
    }
    assert len(prompts) == 1
    alone = {"input": "hi"}, {"input": [{"role": "user", "content": "hi"}]}
    assert len({read(Form.RESPONSES, each).prompt for each in alone}) == 1


def test_cache_control_and_ids_do_not_matter():
    """Anthropic's clients move the mark from turn to turn, and write one text as a part with it."""
    mark = {"cache_control": {"type": "ephemeral"}}
    plain = {"messages": [{"role": "user", "content": "hi"}]}
    marked = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi", **mark}]}]}
    assert read(Form.MESSAGES, plain).prompt == read(Form.MESSAGES, marked).prompt
    image, marked_image = (
        {"messages": [{"role": "user", "content": [part]}]} for part in (IMAGE, IMAGE | mark)
    )
    assert read(Form.MESSAGES, image).prompt == read(Form.MESSAGES, marked_image).prompt


def test_the_billing_header_of_a_client_is_no_part_of_the_prompt():
    """It differs from request to request, and vLLM leaves it out."""

    def ask(number: int) -> bytes | None:
        billing = {"type": "text", "text": f"x-anthropic-billing-header: {number}"}
        system = [billing, {"type": "text", "text": "Be brief."}]
        return read(Form.MESSAGES, {"messages": TURNS, "system": system}).prompt

    assert ask(1) == ask(2)
    assert ask(1).startswith(b"Be brief.")


def test_what_tools_say_is_part_of_the_prompt():
    """It is most of an agent's prompt, and the work that the engine has."""
    answer = "tide table " * 100
    use = {"type": "tool_use", "id": "t", "name": "tide", "input": {"day": 1}}
    result = {"type": "tool_result", "tool_use_id": "t"}
    for content in (answer, [{"type": "text", "text": answer}]):
        messages = [
            *TURNS,
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result | {"content": content}]},
        ]
        prompt = read(Form.MESSAGES, {"messages": messages}).prompt
        assert answer.encode() in prompt
        assert b'["tide",{"day":1}]' in prompt
    items = [
        {"type": "function_call", "call_id": "t", "name": "tide", "arguments": '{"day":1}'},
        {"type": "function_call_output", "call_id": "t", "output": answer},
    ]
    prompt = read(Form.RESPONSES, {"input": items}).prompt
    assert answer.encode() in prompt
    assert b'{"day":1}' in prompt


@pytest.mark.parametrize("key", ["previous_response_id", "conversation"])
def test_a_prompt_that_a_replica_remembers_is_unknown(key):
    """What the request adds is its end, not its beginning."""
    assert read(Form.RESPONSES, {"input": "more", key: "resp_1"}).prompt is None
    assert read(Form.RESPONSES, {"input": "more", key: None}).prompt is not None


def test_scores_begin_with_their_query():
    """All pairs share it; documents that come first in the JSON come second in the prompt."""
    body = {"model": "m", "documents": ["a", {"text": "b"}], "query": "q", "user": "u"}
    features = read(Form.SCORE, {**body, "cache_salt": "s"})
    assert (features.model, features.session, features.salt) == ("m", "u", "s")
    assert features.prompt == b"q\0a\0b"
    for one, two in (("text_1", "text_2"), ("queries", "items"), ("data_1", "data_2")):
        assert read(Form.SCORE, {one: ["q"], two: ["a", "b"]}).prompt == b"q\0a\0b"
    assert read(Form.SCORE, {"documents": ["a"]}).prompt is None


def test_fields_of_sglang():
    """Its sampling options are an object; a batch has one each."""
    body = {
        "rid": "r",
        "text": "p",
        "stream": True,
        "sampling_params": {"max_new_tokens": 5},
        "lora_path": "a",
        "session_params": {"id": "s"},
        "extra_key": "k",
    }
    features = read(Form.SGLANG, body)
    assert (features.request_id, features.prompt, features.max_tokens) == ("r", b"p", 5)
    assert (features.adapter, features.session, features.salt) == ("a", "s", "k")
    assert features.streaming
    batch = read(
        Form.SGLANG,
        {"text": ["p", "q"], "sampling_params": [{"max_new_tokens": 4}], "lora_path": [None, "b"]},
    )
    assert (batch.prompt, batch.max_tokens, batch.adapter) == (b"p\0q", 4, None)
    assert (batch.spans, batch.streaming) == (((0, 1), (2, 3)), False)


@pytest.mark.parametrize(("ids", "flat"), [([1, 2], (1, 2)), ([[1], [2, 3]], (1, 2, 3))])
def test_token_ids_of_sglang(ids, flat):
    """They have the blocks that they have in OpenAI's form."""
    features = read(Form.SGLANG, {"input_ids": ids})
    assert features.token_ids
    assert features.prompt == struct.pack(f"<{len(flat)}I", *flat)
    assert features.prompt == read(Form.OPENAI, {"prompt": ids}).prompt


@pytest.mark.parametrize(
    ("form", "body", "words"),
    [
        (Form.MESSAGES, b"[]", "the Anthropic request must be a JSON object"),
        (Form.MESSAGES, {"model": 5}, "`model` must be a string"),
        (Form.MESSAGES, {"messages": "x"}, "`messages` must be an array"),
        (Form.MESSAGES, {"messages": ["x"]}, r"`messages\[0\]` must be an object"),
        (Form.MESSAGES, {"messages": [{}] * (MAX_TURNS + 1)}, "more than 4096 messages"),
        (Form.MESSAGES, {"messages": [{"content": [{}] * (MAX_PARTS + 1)}]}, "1024 parts"),
        (Form.MESSAGES, {"system": [{}] * (MAX_PARTS + 1)}, "1024 parts"),
        (Form.RESPONSES, {"input": 5}, "`input` must be an array"),
        (Form.RESPONSES, {"input": [5]}, r"`input\[0\]` must be an object"),
        (Form.SCORE, b"", "must be a JSON object|not valid JSON"),
        (Form.SGLANG, b"{", "not valid JSON"),
        (
            Form.MESSAGES,
            b'{"messages":[{"x":' + b"[" * 300 + b"]" * 300 + b"}]}",
            "nests too deep",
        ),
    ],
)
def test_bad_bodies(form, body, words):
    """Each kind of damage has its own clear error."""
    with pytest.raises(BadRequest, match=words):
        read(form, body)


def test_parts_within_parts_are_read_to_one_level():
    """Deeper ones count by their digest, so that a client cannot make the reader recurse."""
    part: dict = {"type": "text", "text": "deep"}
    for _ in range(50):
        part = {"type": "tool_result", "content": [part]}
    prompt = read(Form.MESSAGES, {"messages": [{"role": "user", "content": [part]}]}).prompt
    assert b"deep" not in prompt
    assert len(prompt) < 64


@pytest.mark.parametrize(
    ("form", "body"),
    [
        (Form.MESSAGES, {"messages": [{"role": "user", "content": "x" * MAX_PROMPT_BYTES}]}),
        (Form.OPENAI, {"messages": [{"role": "user", "content": "x" * MAX_PROMPT_BYTES}]}),
        (Form.RESPONSES, {"input": "x" * MAX_PROMPT_BYTES}),
        (Form.SCORE, {"query": "x" * MAX_PROMPT_BYTES, "documents": ["y"]}),
        (Form.SGLANG, {"text": "x" * (MAX_PROMPT_BYTES + 1)}),
    ],
)
def test_long_prompts_are_cut(form, body):
    """A prompt beyond the bound is cut and marked partial."""
    features = read(form, body)
    assert len(features.prompt) == MAX_PROMPT_BYTES
    assert features.prompt_is_partial


TEXT = st.text(max_size=8)
PART = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, TEXT),
    st.builds(lambda text: {"type": "tool_result", "content": text}, TEXT),
    st.builds(lambda text: {"content": [{"text": text}], "type": "tool_result"}, TEXT),
    st.just(IMAGE),
    st.just({"type": "tool_use", "name": "f", "input": {"a": [1]}}),
)
TURN = st.permutations(["role", "content"]).flatmap(
    lambda keys: st.fixed_dictionaries(
        {key: TEXT if key == "role" else TEXT | st.lists(PART, max_size=3) for key in keys}
    )
)
LEADING = ("system", "instructions", "query")
MEMBERS = {
    Form.MESSAGES: st.fixed_dictionaries(
        {"system": TEXT | st.lists(PART, max_size=2), "messages": st.lists(TURN, max_size=4)}
    ),
    Form.RESPONSES: st.fixed_dictionaries(
        {"instructions": TEXT, "input": TEXT | st.lists(TURN, max_size=4)}
    ),
    Form.SCORE: st.fixed_dictionaries(
        {"query": TEXT, "documents": st.lists(TEXT | st.fixed_dictionaries({"text": TEXT}))}
    ),
    Form.SGLANG: st.fixed_dictionaries({"text": TEXT | st.lists(TEXT)}),
}


@given(st.sampled_from(sorted(MEMBERS)), st.booleans(), st.data())
def test_every_cut_body_is_a_prefix(form, model_first, data):
    """The prompt of every first part is a prefix of the whole one, and no name is cut.

    What stands before the turns comes first here: behind them a first part may not show it.
    """
    members = data.draw(MEMBERS[form])
    name = {"model": "the-model"}
    ordered = dict(sorted(members.items(), key=lambda each: each[0] not in LEADING))
    values = {**name, **ordered} if model_first else {**ordered, **name}
    body = json.dumps(values).encode()
    end = data.draw(st.integers(0, len(body)))
    whole, part = read(form, body), read(form, body[:end], complete=False)
    assert (whole.prompt or b"").startswith(part.prompt or b"")
    assert part.model in (None, "the-model")
    if part.prompt is not None and part.prompt != whole.prompt:
        assert part.prompt_is_partial
