"""SGLang's own ``/generate``: a prompt, or a batch of them, as text or token ids.

The body names no model: the path or a header does. A session (``session_params``) lives in one
replica, and its id keeps its requests together where the policy does so.

Source: SGLang, ``GenerateReqInput`` of ``python/sglang/srt/managers/io_struct.py``, commit 001067f.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ext_proc.requests.forms.generate import joined, text_spans
from ext_proc.requests.forms.openai import id_spans, token_ids
from ext_proc.requests.parsing import values
from ext_proc.requests.parsing.json_prefix import Document, read_object

if TYPE_CHECKING:
    from ext_proc.routing.values.request import Features

_PLACE: Final = "the generate request"


def read_sglang(features: Features, body: bytes | memoryview, *, complete: bool) -> Features:
    """Read the body of a generate request.

    Raises:
        BadRequest: The body is not a JSON object.
    """
    document = read_object(body, complete=complete, place=_PLACE)
    members = document.members
    held = members.get("session_params")
    sampling = _first(members.get("sampling_params"))
    named = values.session(held.get("id") if isinstance(held, dict) else None)
    salt = values.session(members.get("cache_salt"))
    features.request_id = values.label(members.get("rid")) or features.request_id
    features.session = named or values.session(members.get("session_id"))
    features.salt = salt or values.session(members.get("extra_key"))
    features.streaming = members.get("stream") is True
    features.adapter = values.label(_first(members.get("lora_path")))
    if isinstance(sampling, dict):
        features.max_tokens = values.positive(sampling.get("max_new_tokens"))
    features.recomputed = members.get("return_logprob") is True and _from_start(members)
    features.prompt, features.prompt_is_partial, features.token_ids = _prompt(document)
    if features.prompt and features.token_ids:
        features.spans = id_spans(members["input_ids"], len(features.prompt))
    elif features.prompt:
        features.spans = text_spans(members["text"], len(features.prompt))
    return features


def _from_start(members: dict[str, Any]) -> bool:
    """Return whether logits are asked for from the prompt's beginning (-1: from its end)."""
    start = members.get("logprob_start_len")
    return type(start) is int and start == 0


def _first(value: Any) -> Any:
    """Return the value of the first request of a batch."""
    return next(iter(value), None) if isinstance(value, list) else value


def _prompt(document: Document) -> tuple[bytes | None, bool, bool]:
    members = document.members
    if members.get("text") is not None:
        return (*joined(members["text"], cut=document.is_cut("text")), False)
    ids = token_ids(members.get("input_ids"), cut=document.is_cut("input_ids"))
    return (*ids, ids[0] is not None)
