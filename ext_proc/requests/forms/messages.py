"""Anthropic's messages.

``system`` stands before the conversation in what the engine computes, and wherever the client puts
it in the JSON; Anthropic's own client writes it behind ``messages``. Where a first part of a body
ends before it, the conversation counts alone. Tools are not part of the prompt, as in chats
(``openai``). vLLM leaves out a text of ``system`` that is its client's billing header, because it
differs from request to request; so does this.

Source: Anthropic's API reference; vLLM 0.32, ``entrypoints/anthropic``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.requests.parsing import turns, values
from ext_proc.requests.parsing.json_prefix import Document, read_object

if TYPE_CHECKING:
    from ext_proc.routing.values.request import Features

_PLACE: Final = "the Anthropic request"
_BILLING: Final = "x-anthropic-billing-header"


def read_messages(features: Features, body: bytes | memoryview, *, complete: bool) -> Features:
    """Read the body of a messages request.

    Raises:
        BadRequest: The body is not a JSON object, its model is not a text, or its messages are no
            array of objects.
    """
    document = read_object(body, complete=complete, place=_PLACE)
    members = document.members
    metadata = members.get("metadata")
    features.model = values.name(members.get("model"), "`model`") or features.model
    features.session = values.session(
        metadata.get("user_id") if isinstance(metadata, dict) else None
    )
    features.salt = values.session(members.get("cache_salt"))
    features.streaming = members.get("stream") is True
    features.max_tokens = values.positive(members.get("max_tokens"))
    features.prompt, features.prompt_is_partial = _prompt(document)
    return features


def _prompt(document: Document) -> tuple[bytes | None, bool]:
    members = document.members
    pieces: list[str] = []
    system = members.get("system")
    if document.is_cut("system"):
        # What follows it in the prompt begins at a place that is not known.
        pieces.append(_system(system))
        return turns.packed(pieces, cut=True)
    if system:
        turns.system_turn(pieces, _system(system))
    if "messages" not in members:
        return None, False
    cut = document.is_cut("messages")
    turns.write_turns(pieces, members["messages"], "messages", cut=cut)
    return turns.packed(pieces, cut=cut)


def _system(value: object) -> str:
    if isinstance(value, list):
        value = [
            part
            for part in value
            if not (
                isinstance(part, dict)
                and isinstance(part.get("text"), str)
                and part["text"].startswith(_BILLING)
            )
        ]
    return turns.texts(value)
