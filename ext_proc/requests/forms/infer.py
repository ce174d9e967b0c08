"""Features common to KServe's infer over gRPC and HTTP. Pure.

Source: KServe's predict protocol, version 2, and Triton's parameters of sequences, priority and
timeout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ext_proc.requests.parsing import values
from ext_proc.requests.parsing.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.requests.parsing.tensors import InputValues
    from ext_proc.routing.values.request import Features

MAX_SEQUENCE_CHARS: Final = 128
"""Triton's bound of a sequence id that is a text."""

_MICROSECOND_S: Final = 1e-6


def describe(
    features: Features,
    request_id: object,
    parameters: Mapping[str, Any],
    found: InputValues,
    place: str,
) -> Features:
    """Return the features of a request, completed by its body.

    Args:
        features: Features from the headers.
        request_id: The request's ``id``.
        parameters: The request's parameters.
        found: Values of its input tensors.
        place: Name of the sequence id in error messages.

    Raises:
        BadRequest: The sequence id is invalid, or longer than Triton takes.
    """
    told = parameters.get("sequence_id")
    told = values.c_text(told) if isinstance(told, str) else values.unsigned(told)
    sequence = values.sequence_id(told, place)
    if isinstance(sequence, str) and len(sequence) > MAX_SEQUENCE_CHARS:
        raise BadRequest(
            f"{place} has {len(sequence)} characters; use at most {MAX_SEQUENCE_CHARS}"
        )
    timeout_us = values.positive(parameters.get("timeout"))
    timeout_s = None if timeout_us is None else timeout_us * _MICROSECOND_S
    if isinstance(request_id, str):
        request_id = values.c_text(request_id)
    features.request_id = values.label(request_id) or features.request_id
    features.sequence_id = features.sequence_id if sequence is None else sequence
    features.sequence_start = parameters.get("sequence_start") is True
    features.sequence_end = parameters.get("sequence_end") is True
    features.priority = values.positive(parameters.get("priority"))
    features.timeout_s = values.sooner(features.timeout_s, timeout_s)
    features.max_tokens = found.max_tokens or values.positive(parameters.get("max_tokens"))
    features.adapter = found.adapter or values.label(parameters.get("lora_name"))
    features.prompt = found.prompt
    features.prompt_is_partial = found.partial
    features.token_ids = found.token_ids
    features.recomputed = found.recomputed
    features.spans = found.spans
    return features
