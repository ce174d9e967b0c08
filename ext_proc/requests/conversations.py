"""What a chat template sees of a chat completion's body, as vLLM prepares it.

Source: vLLM 0.32, ``renderers/chat_utils.py`` (``_parse_chat_message_content``,
``_postprocess_messages``), ``renderers/hf.py`` (``safe_apply_chat_template``) and the models of
tools in ``entrypoints/generate/base/protocol.py``; members and their order matter to templates that
write whole objects as JSON. What is not covered has no variables, so that it is not guessed:
``continue_final_message``, special tokens around the prompt, a template in the request, and
arguments of the renderer itself among ``chat_template_kwargs``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

MEDIA: Final = "\ue000media\ue000"
"""Stands for an image or other media; what is rendered before the first one is known."""

_TEXTS: Final = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Types of parts that are text, and the member that has it."""
_NOT_MEDIA: Final = frozenset({"tool_reference", "prompt_embeds"})
_BILLING: Final = "x-anthropic-billing-header"
_UNKNOWN: Final = ("continue_final_message", "add_special_tokens", "chat_template")
_RENDERER: Final = frozenset(
    {
        "chat_template",
        "conversation",
        "continue_final_message",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)


class Rendering(NamedTuple):
    """What a template is rendered with."""

    variables: dict[str, Any]
    media: bool
    """``MEDIA`` stands for something."""


class UnusualError(Exception):
    """The chat has something that is not covered here."""


def conversation(members: Mapping[str, Any], *, parts: bool, developers: bool) -> Rendering | None:
    """Return the variables for a body; ``None`` if it has something that is not covered.

    Args:
        members: Members of a whole body with ``messages``; they are not changed.
        parts: The template reads contents as lists of parts; else they are texts.
        developers: The template knows the role ``developer``.
    """
    if any(members.get(each) for each in _UNKNOWN):
        return None
    given = members.get("chat_template_kwargs")
    options: dict[str, Any] = dict(given) if isinstance(given, dict) else {}
    if not _RENDERER.isdisjoint(options):
        return None
    effort = members.get("reasoning_effort")
    if effort is not None and "enable_thinking" not in options:
        options["enable_thinking"] = effort != "none"
    for name in ("reasoning_effort", "documents"):
        if members.get(name) is not None:
            options[name] = members[name]
    generation = members.get("add_generation_prompt")
    options["add_generation_prompt"] = True if generation is None else generation
    options.setdefault("documents", None)
    try:
        messages = [_message(each, parts=parts) for each in members["messages"]]
        tools = members.get("tools")
        options["tools"] = None if tools is None else [_tool(each) for each in tools]
    except (AttributeError, KeyError, TypeError, UnusualError):
        return None
    if not developers and any(each["role"] == "developer" for each in messages):
        messages = _consolidated(messages)
    options["messages"] = messages
    return Rendering(options, any(_has_media(each["content"]) for each in messages))


def _message(message: Mapping[str, Any], *, parts: bool) -> dict[str, Any]:
    role = message["role"]
    made: dict[str, Any] = {"role": role, "content": _content(message, role, parts=parts)}
    if role == "assistant":
        calls = message.get("tool_calls")
        if calls:
            made["tool_calls"] = [_call(each) for each in calls]
        reasoning = message.get("reasoning")
        if reasoning is not None:
            made["reasoning"] = made["reasoning_content"] = reasoning
    elif role == "tool":
        if "tool_call_id" in message:
            made["tool_call_id"] = message["tool_call_id"]
        content = made["content"]
        if isinstance(content, list):
            made["content"] = "\n".join(each["text"] for each in content)
    if isinstance(message.get("name"), str):
        made["name"] = message["name"]
    if role == "developer":
        made["tools"] = message.get("tools")
    return made


def _content(message: Mapping[str, Any], role: str, *, parts: bool) -> str | list[dict[str, str]]:
    content = message.get("content")
    if isinstance(content, str) and not content.startswith(_BILLING):
        return [{"type": "text", "text": content}] if parts else content
    texts = _texts(content)
    if role == "system":
        texts = [
            rest if text.startswith(_BILLING) else text
            for text in texts
            if (rest := text.partition("\n")[2]) or not text.startswith(_BILLING)
        ]
    if parts:
        return [{"type": "text", "text": text} for text in texts]
    # Placeholders of media come first, or where they are, as the model has it.
    return MEDIA if MEDIA in texts else "\n".join(text for text in texts if text)


def _texts(content: object) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise UnusualError
    texts: list[str] = []
    for part in content:
        kind = "text" if isinstance(part, str) else part["type"]
        if kind in _NOT_MEDIA or not isinstance(kind, str):
            raise UnusualError
        if kind not in _TEXTS:
            texts.append(MEDIA)
            continue
        text = part if isinstance(part, str) else part[_TEXTS[kind]]
        if text is None and kind in ("text", "refusal"):
            continue
        if not isinstance(text, str):
            raise UnusualError
        texts.append(text)
    return texts


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    if isinstance(arguments, str) and arguments:
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    made: dict[str, Any] = {}
    if "id" in call:
        made["id"] = call["id"]
    made["function"] = {
        "arguments": arguments if isinstance(arguments, dict) else {},
        "name": function["name"],
    }
    made["type"] = call.get("type", "function")
    return made


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    if "defer_loading" in tool or "defer_loading" in function:
        raise UnusualError
    made = {
        "name": function["name"],
        "description": function.get("description"),
        "parameters": function.get("parameters"),
    }
    if function.get("strict") is not None:
        made["strict"] = function["strict"]
    return {"type": "function", "function": made}


def _consolidated(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with developers as systems, and one system message, the first."""
    for message in messages:
        if message["role"] == "developer":
            message["role"] = "system"
            message.pop("tools", None)
    systems = [at for at, each in enumerate(messages) if each["role"] == "system"]
    if systems in ([], [0]):
        return messages
    contents = []
    for at in systems:
        content = messages[at]["content"]
        if isinstance(content, list):
            content = "\n".join(each["text"] for each in content)
        if content:
            contents.append(content)
    others = [each for each in messages if each["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(contents)}, *others]


def _has_media(content: str | list[dict[str, str]]) -> bool:
    if isinstance(content, str):
        return MEDIA in content
    return any(each["text"] == MEDIA for each in content)
