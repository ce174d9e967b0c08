"""Variables of chat templates. ``tests/contract/test_vllm_chats.py`` holds the usual ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.requests.conversations import MEDIA, conversation

USER = {"role": "user", "content": "tide"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
TEXT = {"type": "text", "text": "see"}


def of(parts=False, developers=True, **members):
    return conversation({"messages": [USER], **members}, parts=parts, developers=developers)


@pytest.mark.parametrize(
    "members",
    [
        {"continue_final_message": True},
        {"add_special_tokens": True},
        {"chat_template": "{{ x }}"},
        {"chat_template_kwargs": {"truncation": True}},
        {"messages": [{"content": "no role"}]},
        {"messages": ["text"]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_reference", "name": "x"}]}]},
        {"messages": [{"role": "user", "content": [{"type": 5}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
        {"tools": [{"type": "function"}]},
        {"tools": 7},
        {"tools": [{"function": {"name": "x", "defer_loading": True}}]},
    ],
)
def test_what_is_not_covered_is_not_guessed(members):
    """Such a chat is predicted as without a template."""
    assert of(**members) is None


@pytest.mark.parametrize(
    ("parts", "content"),
    [(False, MEDIA), (True, [TEXT, {"type": "text", "text": MEDIA}, TEXT])],
)
def test_media_are_marked(parts, content):
    """Where contents are texts, placeholders may come before them."""
    found = of(parts=parts, messages=[USER, {"role": "user", "content": [TEXT, IMAGE, TEXT]}])
    assert found.media
    assert found.variables["messages"][1]["content"] == content


def test_reasoning_effort_turns_thinking_on():
    """As vLLM does; a request's own word stays."""
    assert of(reasoning_effort="high").variables["enable_thinking"] is True
    assert of(reasoning_effort="none").variables["enable_thinking"] is False
    given_one = of(reasoning_effort="high", chat_template_kwargs={"enable_thinking": False})
    assert given_one.variables["enable_thinking"] is False


def test_a_body_is_not_changed():
    """It may be asked about at an engine."""
    call = {"id": "1", "type": "function", "function": {"name": "x", "arguments": "{}"}}
    messages = [{"role": "developer", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]
    body = {"messages": messages, "chat_template_kwargs": {"a": 1}}
    before = repr(body)
    conversation(body, parts=False, developers=False)
    assert repr(body) == before


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "function", "name", "content", "role", "arguments"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(
    st.fixed_dictionaries(
        {"messages": st.lists(ANYTHING, max_size=3)},
        optional=dict.fromkeys(
            ("tools", "chat_template_kwargs", "add_generation_prompt", "reasoning_effort"), ANYTHING
        ),
    ),
    st.booleans(),
)
def test_any_body_has_variables_or_none(members, parts):
    """Bodies are what clients send."""
    conversation(members, parts=parts, developers=parts)
    for message in members["messages"]:
        if isinstance(message, dict):
            for role in ("system", "assistant", "tool", "developer"):
                conversation(
                    {**members, "messages": [{**message, "role": role}]},
                    parts=parts,
                    developers=False,
                )
