"""generate bodies."""

from __future__ import annotations

import json

import pytest

from ext_proc.requests.forms.generate import read_generate
from ext_proc.requests.parsing.errors import BadRequest
from ext_proc.requests.parsing.values import MAX_PROMPT_BYTES
from ext_proc.routing.values.request import Features, Form

HEAD = Features(Form.GENERATE, model="m")


def read(body, *, complete: bool = True) -> Features:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_generate(HEAD.changed(), data, complete=complete)


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        ({"text_input": "a"}, b"a"),
        ({"prompt": "b"}, b"b"),
        ({"prompt": "b", "text_input": "a"}, b"a"),
        ({"parameters": {"text_input": "c"}}, b"c"),
        ({"text_input": ["a", "b"]}, b"a\0b"),
        ({"prompt": 5}, None),
        ({"prompt": ["a", 5]}, None),
        ({}, None),
    ],
)
def test_prompt(body, prompt):
    """The prompt lies under its tensor's name, at the top or in the parameters."""
    assert read(body).prompt == prompt


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 5, "lora_name": "a"},
        {"parameters": {"max_tokens": 5, "lora_name": "a"}},
        {"sampling_parameters": '{"max_tokens": 5, "lora_name": "a"}'},
        {"parameters": {"sampling_parameters": {"max_tokens": 5, "lora_name": "a"}}},
    ],
)
def test_options(body):
    """Token limit and adapter are found wherever a backend looks for them."""
    features = read(body)
    assert (features.max_tokens, features.adapter) == (5, "a")


def test_sequences_are_ignored():
    """Triton does not honour sequences, priority and timeout here."""
    body = {"sequence_id": 1, "parameters": {"sequence_id": 1, "priority": 1, "timeout": 5}}
    features = read(body)
    assert (features.sequence_id, features.priority, features.timeout_s) == (None, None, None)


def test_unusable_options_are_unknown():
    """Options of a wrong type are left to the replica's validation."""
    body = {"max_tokens": -1, "lora_name": 1, "sampling_parameters": "{", "parameters": {"id": 5}}
    features = read(body)
    assert (features.max_tokens, features.adapter, features.request_id) == (None, None, None)


@pytest.mark.parametrize(
    "body", [{"id": 5}, {"max_tokens": True}, {"stream": 1}, {"parameters": 1}]
)
def test_a_value_that_triton_answers_with_500_keeps_the_prompt(body):
    """The request is routed as well as a good one, and its answer is the caller's fault."""
    with pytest.raises(BadRequest) as caught:
        read({"text_input": "a", **body})
    assert caught.value.features is not None
    assert caught.value.features.prompt == b"a"


@pytest.mark.parametrize("body", [b"hello", b""])
def test_bad_json(body):
    """A body that is not a JSON object is refused; Triton answers 500 to an empty one."""
    with pytest.raises(BadRequest, match="generate request"):
        read(body)


def test_long_prompt_is_cut():
    """A prompt beyond the bound is cut and marked partial."""
    features = read({"text_input": "x" * (MAX_PROMPT_BYTES + 1)})
    assert features.prompt == b"x" * MAX_PROMPT_BYTES
    assert features.prompt_is_partial


def test_truncation():
    """The prompt of every first part is a prefix of the prompt."""
    body = json.dumps(
        {"id": "r", "text_input": "hé\n\\llo 😀", "stream": False, "max_tokens": 123}
    ).encode()
    whole = read(body)
    for end in range(len(body)):
        features = read(body[:end], complete=False)
        assert (whole.prompt or b"").startswith(features.prompt or b"")
        assert features.max_tokens in (None, 123)
    assert not read(body[:-3], complete=False).prompt_is_partial
    assert read(body[:30], complete=False).prompt_is_partial
    assert read(b"", complete=False) == HEAD


@pytest.mark.parametrize(
    ("body", "adapter"),
    [
        ({"lora_name": "a", "lora_task_id": 3}, "a"),
        ({"lora_task_id": 3}, "3"),
        ({"parameters": {"lora_task_id": 4}}, "4"),
        ({"sampling_parameters": {"lora_name": "b"}}, "b"),
        ({"lora_task_id": "x"}, None),
        ({"lora_task_id": 0}, None),
    ],
)
def test_adapter(body, adapter):
    """An adapter is named, or numbered as TensorRT-LLM does."""
    assert read(body).adapter == adapter


def test_the_texts_of_a_batch_are_told_apart():
    """Their places in the joined prompt, wherever they are in the body; a text alone has none."""
    texts = ["ab", "", "cd€"]
    for body in ({"text_input": texts}, {"parameters": {"prompt": texts}}):
        features = read(body)
        assert [features.prompt[a:b].decode() for a, b in features.spans] == texts
    assert read({"text_input": "ab"}).spans == ()
    assert read({"text_input": ["ab"]}).spans == ()
