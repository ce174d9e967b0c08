"""OpenAI's responses.

``instructions`` are the system's turn, before ``input``, which is a text or a list of items: turns,
calls of tools, their answers. OpenAI's client writes the instructions behind the input; where a
first part of a body ends before them, the input counts alone. What an engine remembers of earlier
responses (``previous_response_id``, ``conversation``) is in one replica and not in the body:
neither the prompt nor the replica follows from it.

Source: OpenAI's API reference; vLLM 0.32, ``entrypoints/openai/responses``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.requests.parsing import turns, values
from ext_proc.requests.parsing.json_prefix import Document, read_object

if TYPE_CHECKING:
    from ext_proc.routing.values.request import Features

_PLACE: Final = "the OpenAI request"
_EARLIER: Final = ("previous_response_id", "conversation")


def read_responses(features: Features, body: bytes | memoryview, *, complete: bool) -> Features:
    """Read the body of a responses request.

    Raises:
        BadRequest: The body is not a JSON object, its model is not a text, or an item of its input
            is no object.
    """
    document = read_object(body, complete=complete, place=_PLACE)
    members = document.members
    features.model = values.name(members.get("model"), "`model`") or features.model
    named = values.session(members.get("prompt_cache_key"))
    features.session = named or values.session(members.get("user"))
    features.salt = values.session(members.get("cache_salt"))
    features.streaming = members.get("stream") is True
    features.max_tokens = values.positive(members.get("max_output_tokens"))
    features.prompt, features.prompt_is_partial = _prompt(document)
    return features


def _prompt(document: Document) -> tuple[bytes | None, bool]:
    members = document.members
    pieces: list[str] = []
    instructions = members.get("instructions")
    if isinstance(instructions, str):
        if document.is_cut("instructions"):
            return turns.packed([instructions], cut=True)
        turns.system_turn(pieces, instructions)
    if "input" not in members or any(members.get(each) is not None for each in _EARLIER):
        return None, False
    value, cut = members["input"], document.is_cut("input")
    if isinstance(value, str):
        pieces.append(value)
        if not cut:
            pieces += (turns.ROLE_MARK, "user", turns.TURN_END)
    else:
        turns.write_turns(pieces, value, "input", cut=cut)
    return turns.packed(pieces, cut=cut)
