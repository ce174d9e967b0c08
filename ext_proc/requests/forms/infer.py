"""What KServe's infer says in both of its forms, gRPC and HTTP. Pure.

Source: KServe's predict protocol, version 2, and Triton's parameters of sequences, priority and
timeout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ext_proc.requests.parsing import values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.requests.parsing.tensors import Said
    from ext_proc.routing.values.request import Features

_MICROSECOND_S: Final = 1e-6


def describe(
    features: Features, request_id: object, parameters: Mapping[str, Any], said: Said, place: str
) -> Features:
    """Return what is known of a request with what its body says.

    Args:
        features: What its head says.
        request_id: Its ``id``.
        parameters: Those of the request.
        said: What its tensors say.
        place: How an error names the sequence's id.

    Raises:
        BadRequest: The sequence's id is none.
    """
    sequence = values.sequence_id(parameters.get("sequence_id"), place)
    timeout_us = values.positive(parameters.get("timeout"))
    timeout_s = None if timeout_us is None else timeout_us * _MICROSECOND_S
    made = features.copy()
    made.request_id = values.label(request_id) or features.request_id
    made.sequence_id = features.sequence_id if sequence is None else sequence
    made.sequence_start = parameters.get("sequence_start") is True
    made.sequence_end = parameters.get("sequence_end") is True
    made.priority = values.positive(parameters.get("priority"))
    made.timeout_s = values.sooner(features.timeout_s, timeout_s)
    made.max_tokens = said.max_tokens or values.positive(parameters.get("max_tokens"))
    made.adapter = said.adapter or values.label(parameters.get("lora_name"))
    made.prompt = said.prompt
    made.prompt_is_partial = said.partial
    made.token_ids = said.token_ids
    return made
