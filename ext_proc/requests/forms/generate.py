"""Triton's ``generate`` and ``generate_stream``: a JSON object whose keys name tensors.

Source: Triton's generate extension. The server ignores ``sequence_id``, ``priority`` and
``timeout`` here, so they are not read. Unknown keys become request parameters, so prompt and
sampling options may be at the top level or inside ``parameters``. Values that Triton 2.51 answers
with a 5xx are a ``BadRequest``; types of inputs other than the usual ones depend on the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ext_proc.requests.parsing import values
from ext_proc.requests.parsing.budget import MAX_PROMPTS, MAX_TEXTS
from ext_proc.requests.parsing.errors import BadRequest
from ext_proc.requests.parsing.json_prefix import Document, Rules, read_object
from ext_proc.requests.parsing.shapes import count_json
from ext_proc.requests.parsing.tensors import (
    ADAPTER_INPUT,
    SAMPLING_INPUT,
    SEPARATOR,
    sampling_parameters,
)

if TYPE_CHECKING:
    from ext_proc.routing.values.request import Features

PROMPT_KEYS: Final = ("text_input", "prompt")

_PARAMETERS: Final = "parameters"
_BATCH: Final = 2
"""Prompts from which on there are several."""
_NONE: Final[dict[str, Any]] = {}
_INT64_END: Final = 2**63
_INPUTS: Final = (("text_input", "BYTES"), ("max_tokens", "INT64"), ("stream", "BOOL"))
"""Inputs that Triton's backends of language models name alike, with a datatype of their kind."""
_PLACE: Final = "the generate request"


def read_generate(features: Features, body: bytes | memoryview, *, complete: bool) -> Features:
    """Read a ``generate`` body; the path names model and version.

    Raises:
        BadRequest: The body is not a JSON object, or a value has a wrong type; what was read is
            with the latter.
    """
    if not len(body) and not complete:
        return features
    document = read_object(body, complete=complete, place=_PLACE, rules=Rules.TRITON)
    features.cut = not document.whole
    members = document.members
    nested = members.get(_PARAMETERS)
    parameters: dict[str, Any] = nested if isinstance(nested, dict) else _NONE
    features.prompt, features.prompt_is_partial, features.spans = _prompt(document, parameters)
    sampled = members.get(SAMPLING_INPUT, parameters.get(SAMPLING_INPUT))
    places = [members]
    if parameters:
        places.append(parameters)
    if sampled is not None and (sampling := _sampling(sampled)):
        places.append(sampling)
        features.recomputed = sampling.get("prompt_logprobs") is not None
    request_id = members.get("id")
    if request_id is not None:
        if isinstance(request_id, str):
            request_id = values.c_text(request_id)
        features.request_id = values.label(request_id) or features.request_id
    tokens: Any = members.get("max_tokens")
    countable = type(tokens) is int and tokens < _INT64_END
    features.max_tokens = tokens if countable and tokens > 0 else None
    for place in places:
        if features.max_tokens is None and "max_tokens" in place:
            features.max_tokens = values.positive(place["max_tokens"])
        if features.adapter is None and ("lora_name" in place or ADAPTER_INPUT in place):
            features.adapter = _adapter(place)
    if (
        (not countable and "max_tokens" in members)
        or type(members.get("stream", False)) is not bool
        or (features.prompt is None and "text_input" in members)
        or (request_id is not None and features.request_id is None)
        or (nested is not parameters and _PARAMETERS in members)
    ):
        _check(members, features)
    return features


def _check(members: dict[str, Any], made: Features) -> None:
    """Check the types that do not depend on the model."""
    if not isinstance(members.get("id", ""), str):
        raise BadRequest("`id` must be a string", made)
    if not isinstance(members.get(_PARAMETERS, _NONE), dict):
        raise BadRequest("`parameters` must be an object", made)
    for key, datatype in _INPUTS:
        if key in members:
            value = members[key]
            try:
                count_json(value if isinstance(value, list) else [value], datatype, f"`{key}`")
            except BadRequest as error:
                error.features = made
                raise


def _prompt(
    document: Document, parameters: dict[str, Any]
) -> tuple[bytes | None, bool, tuple[tuple[int, int], ...]]:
    for members, whole in ((document.members, None), (parameters, _PARAMETERS)):
        for key in PROMPT_KEYS:
            if key in members:
                value = members[key]
                text, partial = joined(value, cut=document.is_cut(whole or key))
                if not text or isinstance(value, str):
                    return text, partial, ()
                return text, partial, text_spans(value, len(text))
    return None, False, ()


def joined(value: object, *, cut: bool) -> tuple[bytes | None, bool]:
    """Return a text, or the texts of an array joined, and whether something is missing."""
    if isinstance(value, str):
        text = value.encode()
    elif isinstance(value, list) and all(isinstance(part, str) for part in value[:MAX_TEXTS]):
        text = SEPARATOR.join([part.encode() for part in value[:MAX_TEXTS]])
        cut = cut or len(value) > MAX_TEXTS
    else:
        return None, False
    return text[: values.MAX_PROMPT_BYTES], cut or len(text) > values.MAX_PROMPT_BYTES


def text_spans(value: object, size: int) -> tuple[tuple[int, int], ...]:
    """Return begin and end of each text of a batch in what ``joined`` returned, ``size`` bytes.

    Empty for a text alone; at most ``MAX_PROMPTS``.
    """
    if not isinstance(value, list) or len(value) < _BATCH:
        return ()
    found, begin = [], 0
    for text in value[:MAX_PROMPTS]:
        end = begin + len(text.encode())
        found.append((begin, min(end, size)))
        begin = end + len(SEPARATOR)
        if begin >= size:
            break
    return tuple(found)


def _sampling(value: object) -> dict[str, Any]:
    """Return vLLM's sampling parameters, given as an object or as its JSON text."""
    if isinstance(value, dict):
        return value
    return sampling_parameters(value) if isinstance(value, str) else {}


def _adapter(place: dict[str, Any]) -> str | None:
    """Return the adapter by name or else by number (TensorRT-LLM's ``lora_task_id``)."""
    number = values.positive(place.get(ADAPTER_INPUT))
    return values.label(place.get("lora_name")) or (None if number is None else str(number))
