"""OpenAI's completions, chat completions and embeddings.

The body names the model. A prompt is a text, texts, token ids or arrays of them. A chat becomes
canonical bytes message by message, so that a growing conversation keeps its prefix. The replica
applies the chat template, which is unknown here; equal canonical bytes give equal template output
as long as tools and template options are equal too. These are not part of the bytes: templates
write tools before the messages, but OpenAI's clients send them after the messages. A first part of
a body would not show them, and a conversation would change its prefix when it outgrows that part.

Each message is written as its content and then its role and other members, whatever their order in
the JSON; of a message that is cut off only the content is written. So the prompt from a first part
of a body is always a prefix of the whole body's prompt.
"""

from __future__ import annotations

import struct
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import orjson
import xxhash

from ext_proc.requests.forms.generate import joined, text_spans
from ext_proc.requests.parsing import turns, values
from ext_proc.requests.parsing.budget import MAX_PIECES, MAX_PROMPTS
from ext_proc.requests.parsing.errors import BadRequest
from ext_proc.requests.parsing.json_prefix import Document, read_object
from ext_proc.routing.values.request import Truncation
from ext_proc.routing.values.scale import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.routing.values.request import Features

MAX_MESSAGES: Final = turns.MAX_TURNS
MAX_PARTS: Final = turns.MAX_PARTS
"""Maximum parts of one message's content."""

_ROLE_MARK: Final = turns.ROLE_MARK
_MESSAGE_END: Final = turns.TURN_END
_PART_END: Final = turns.PART_MARK
_MEDIA_MARK: Final = turns.MEDIA_MARK
_PLAIN: Final = 2
"""Number of members of a message that consists of a text and its role."""
_PLACE: Final = "the OpenAI request"


def read_openai(features: Features, body: bytes | memoryview, *, complete: bool) -> Features:
    """Read the body of a completion, chat completion or embeddings request.

    Raises:
        BadRequest: The body is not a JSON object, or its model is not a text.
    """
    document = read_object(body, complete=complete, place=_PLACE)
    members = document.members
    prompt, partial, ids = _prompt(document)
    limit = values.positive(members.get("max_completion_tokens"))
    features.model = values.name(members.get("model"), "`model`") or features.model
    named = values.session(members.get("prompt_cache_key"))
    features.session = named or values.session(members.get("user"))
    features.salt = values.session(members.get("cache_salt"))
    features.streaming = members.get("stream") is True
    features.max_tokens = limit or values.positive(members.get("max_tokens"))
    features.prompt = prompt
    features.prompt_is_partial = partial
    features.token_ids = ids
    if prompt and "messages" not in members:
        told = members.get("prompt", members.get("input"))
        features.spans = (id_spans if ids else text_spans)(told, len(prompt))
    features.plain_text = members.get("add_special_tokens") is False
    if "prompt_logprobs" in members or "echo" in members:
        features.recomputed = _recomputed(members)
    if document.whole and "messages" in members:
        features.chat = members
    if "truncate_prompt_tokens" in members:
        features.truncation = _truncation(members, ids=ids)
    return features


def _recomputed(members: Mapping[str, Any]) -> bool:
    """Return whether the engine needs the logits of the whole prompt, so reads none of its cache.

    As in vLLM 0.32 (``to_sampling_params`` of both protocols, ``SamplingParams.__post_init__``),
    where the ``top_logprobs`` of a chat are 0 unless given. SGLang does so for completions.
    """
    if members.get("prompt_logprobs") is not None:
        return True
    if members.get("echo") is not True:
        return False
    if "messages" in members:
        return members.get("top_logprobs", 0) is not None
    return members.get("logprobs") is not None


def _truncation(members: Mapping[str, Any], *, ids: bool) -> Truncation | None:
    """Return how vLLM truncates a prompt (0.32: ``renderers/params.py``, ``registry.py``)."""
    most = values.positive(members.get("truncate_prompt_tokens"))
    side = members.get("truncation_side")
    # Without a side generation drops the beginning, and embeddings the end; then texts are
    # truncated by their tokenizer, which keeps special tokens.
    left = side == "left" or (side is None and "input" not in members)
    return None if most is None else Truncation(most, left, ids or side is not None)


def _prompt(document: Document) -> tuple[bytes | None, bool, bool]:
    """Return the prompt, whether something of it is missing, and whether it is token ids."""
    members = document.members
    if "messages" in members:
        return (*_chat(members["messages"], cut=document.is_cut("messages")), False)
    for key in ("prompt", "input"):
        if key in members:
            cut = document.is_cut(key)
            text = joined(members[key], cut=cut) if members[key] != [] else (None, False)
            if text[0] is not None:
                return (*text, False)
            ids = token_ids(members[key], cut=cut)
            return (*ids, ids[0] is not None)
    return None, False, False


def token_ids(value: object, *, cut: bool) -> tuple[bytes | None, bool]:
    """Return token ids as little-endian 32-bit integers; arrays of a batch are concatenated."""
    if not isinstance(value, list) or not value:
        return None, False
    flat: list[Any] = value
    if isinstance(value[0], list):
        flat = list(chain.from_iterable(value)) if set(map(type, value)) == {list} else value
    most = values.MAX_PROMPT_BYTES // 4
    try:
        packed = struct.pack(f"<{min(len(flat), most)}I", *flat[:most])
    except struct.error:
        return None, False
    return packed, cut or len(flat) > most


def id_spans(value: object, size: int) -> tuple[tuple[int, int], ...]:
    """Return begin and end of each prompt of a batch in what ``token_ids`` returned.

    Empty for one prompt; at most ``MAX_PROMPTS``.
    """
    if not isinstance(value, list) or not isinstance(value[0], list) or not value[1:]:
        return ()
    found, begin = [], 0
    for prompt in value[:MAX_PROMPTS]:
        end = begin + len(prompt) * ID_BYTES
        found.append((begin, min(end, size)))
        begin = end
        if begin >= size:
            break
    return tuple(found)


def _chat(messages: object, *, cut: bool) -> tuple[bytes | None, bool]:
    if not isinstance(messages, list):
        raise BadRequest(f"`messages` must be an array, not {values.json_type(messages)}")
    if len(messages) > MAX_MESSAGES:
        raise BadRequest(f"the request has more than {MAX_MESSAGES} messages; send fewer")
    pieces: list[str] = []
    cut_at = len(messages) - 1 if cut else -1
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            place = f"`messages[{index}]`"
            raise BadRequest(f"{place} must be an object, not {values.json_type(message)}")
        content = message.get("content")
        role = message.get("role")
        plain = len(message) == _PLAIN and index != cut_at
        if plain and isinstance(content, str) and isinstance(role, str):
            pieces.append(content)
            pieces.append(_ROLE_MARK)
            pieces.append(role)
            pieces.append(_MESSAGE_END)
        else:
            _write_message(pieces, message, cut=index == cut_at)
            if len(pieces) > MAX_PIECES:
                cut = True
                break
    text = "".join(pieces).encode()
    return text[: values.MAX_PROMPT_BYTES], cut or len(text) > values.MAX_PROMPT_BYTES


def _write_message(pieces: list[str], message: dict[str, Any], *, cut: bool) -> None:
    content = message.get("content")
    if isinstance(content, str):
        pieces.append(content)
    elif isinstance(content, list):
        _write_parts(pieces, content, cut=cut)
    if cut or len(pieces) > MAX_PIECES:
        return
    role = message.get("role")
    pieces.append(_ROLE_MARK)
    if isinstance(role, str):
        pieces.append(role)
    others = {key: message[key] for key in message if key not in ("content", "role")}
    if others:
        pieces += (_MEDIA_MARK, _digest(others))
    pieces.append(_MESSAGE_END)


def _write_parts(pieces: list[str], parts: list[Any], *, cut: bool) -> None:
    """Write texts verbatim, and everything else (images, audio) as a digest."""
    if len(parts) > MAX_PARTS:
        raise BadRequest(f"a message of the request has more than {MAX_PARTS} parts; send fewer")
    last = len(parts) - 1
    for index, part in enumerate(parts):
        if len(pieces) > MAX_PIECES:
            return
        ends_here = cut and index == last
        words = part.get("text") if isinstance(part, dict) else part
        if isinstance(words, str):
            pieces.append(words)
        elif not ends_here:
            pieces += (_MEDIA_MARK, _digest(part))
        if not ends_here:
            pieces.append(_PART_END)


def _digest(value: object) -> str:
    try:
        canonical = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        raise BadRequest("a message of the request nests too deeply; send it flatter") from None
    return xxhash.xxh3_128_hexdigest(canonical)
