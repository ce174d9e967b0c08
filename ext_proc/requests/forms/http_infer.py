"""KServe's HTTP ``infer``: JSON, or JSON followed by binary tensors, or one raw tensor.

Source: Triton's binary tensor data extension; server: ``src/http_server.cc``. With
``inference-header-content-length: N`` the JSON is the first N bytes. The tensors follow in the
order of the inputs, each ``parameters.binary_data_size`` long; inputs with inline ``data`` or in
shared memory are skipped. N = 0 means one raw tensor and no JSON, as an empty body does. N is read
by C's ``atoi``: digits after white space and a sign, without what follows, kept in 32 bits. Of two
such headers the first counts; where values are joined by commas, ``atoi`` reads just that.

What Triton 2.51 answers with a 5xx is a ``BadRequest`` here, so that such an answer is known to
be the caller's fault; shapes that contradict the data are an ``UnsoundRequest``. See the recorded
mistakes in ``tests/contract/fixtures/triton-2.51.0/mistakes.json``.

If only a first part of the body is read, everything in the JSON after the cut is lost. tritonclient
writes ``id``, then ``inputs``, then ``parameters``. So the sequence after a large inline tensor is
not seen; with binary tensors the JSON comes first and is seen.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ext_proc.requests.forms.http_inputs import Inputs, is_unsigned
from ext_proc.requests.forms.infer import describe
from ext_proc.requests.parsing import values
from ext_proc.requests.parsing.budget import MAX_CUT_BYTES, MAX_INPUTS, too_complex
from ext_proc.requests.parsing.errors import BadRequest, UnsoundRequest
from ext_proc.requests.parsing.json_prefix import Rules, read_object
from ext_proc.requests.parsing.tensors import NOTHING, InputValues, read_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ext_proc.routing.values.request import Features

LENGTH_HEADER: Final = "inference-header-content-length"
_MAX_LENGTH_DIGITS: Final = 19
"""More are beyond 64 bits."""
_INTEGER: Final = re.compile(r"[ \t\n\v\f\r]*([-+]?)([0-9]+)")
_PLACE: Final = "the infer request"


def read_infer(
    features: Features,
    headers: Mapping[str, str],
    body: bytes | memoryview,
    *,
    complete: bool,
) -> Features:
    """Read an ``infer`` body; the path alone names the model.

    Raises:
        BadRequest: It is not an infer request, or its lengths contradict each other.
    """
    view = memoryview(body)
    json_end = _json_length(headers)
    if json_end == 0 or (complete and not view):
        return features
    blobs, text, whole = None, body, complete
    if json_end is not None:
        if json_end < 0 or (json_end > len(view) and complete):
            raise BadRequest(
                f"{LENGTH_HEADER} is {json_end}, but the body has only {len(view)} bytes"
            )
        whole = json_end <= len(view)
        text, blobs = bytes(view[:json_end]), view[json_end:]
    document = read_object(text, complete=whole, place=_PLACE, rules=Rules.TRITON)
    features.cut = not document.whole
    members = document.members
    inputs = members.get("inputs")
    reader = Inputs(document, headers, view, blobs, complete=complete)
    try:
        if whole and not document.whole and len(text) <= MAX_CUT_BYTES:
            raise too_complex(
                f"{_PLACE} has too many keys, objects and arrays to be read by Triton's own rules; "
                "send JSON without `NaN`, invalid texts and repeated keys"
            )
        tensors = reader.read(inputs) if "inputs" in members or document.whole else {}
        if "outputs" in members:
            _check_outputs(members["outputs"], cut=document.is_cut("outputs"))
        made = _describe(features, members, read_tensors(tensors) if tensors else NOTHING)
    except UnsoundRequest as error:
        with suppress(BadRequest):
            error.features = _describe(features, members, NOTHING)
        raise
    except BadRequest:
        reader.check_harm(inputs)
        raise
    made.tensor_bytes = reader.largest
    return made


def _json_length(headers: Mapping[str, str]) -> int | None:
    text = headers.get(LENGTH_HEADER)
    return None if text is None else atoi(text)


def atoi(text: str) -> int:
    """Return the integer at the beginning of a text as glibc's ``atoi`` does, 0 if there is none.

    The value is kept within 64 bits, and of it the lower 32 are returned, as a signed integer.
    """
    found = _INTEGER.match(text)
    if found is None:
        return 0
    digits = found[2].lstrip("0")
    value = int(digits or "0") if len(digits) <= _MAX_LENGTH_DIGITS else 2**64
    value = max(-(2**63), -value) if found[1] == "-" else min(2**63 - 1, value)
    return (value + 2**31) % 2**32 - 2**31


def _describe(features: Features, members: dict[str, Any], found: InputValues) -> Features:
    parameters: Any = members.get("parameters", _NONE)
    if not isinstance(parameters, dict):
        raise BadRequest(f"`parameters` must be an object, not {values.json_type(parameters)}")
    for name in parameters:
        kind = _PARAMETERS.get(name)
        if kind is not None and not kind(parameters[name]):
            raise BadRequest(f"`parameters.{name}` has a wrong type or value")
    if not isinstance(members.get("id", ""), str):
        raise BadRequest(f"`id` must be a string, not {values.json_type(members['id'])}")
    return describe(features, members.get("id"), parameters, found, "`parameters.sequence_id`")


def _is_boolean(value: object) -> bool:
    return type(value) is bool


def _is_sequence(value: object) -> bool:
    return isinstance(value, str) or is_unsigned(value)


_NONE: Final[dict[str, Any]] = {}
_PARAMETERS: Final[dict[str, Callable[[object], bool]]] = {
    "sequence_id": _is_sequence,
    "sequence_start": _is_boolean,
    "sequence_end": _is_boolean,
    "binary_data_output": _is_boolean,
    "priority": is_unsigned,
    "timeout": is_unsigned,
}
"""Parameters whose types Triton checks."""


def _check_outputs(outputs: object, *, cut: bool) -> None:
    if not isinstance(outputs, list):
        raise BadRequest(f"`outputs` must be an array, not {values.json_type(outputs)}")
    if len(outputs) > MAX_INPUTS:
        raise too_complex(f"the request has more than {MAX_INPUTS} outputs; send fewer")
    last = len(outputs) - 1 if cut else -1
    for index, item in enumerate(outputs):
        if index == last:
            return
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise BadRequest(f"`outputs[{index}]` must have a `name`, a string")
        parameters = item.get("parameters")
        if isinstance(parameters, dict) and not (
            _is_boolean(parameters.get("binary_data", True))
            and is_unsigned(parameters.get("classification", 0))
        ):
            raise BadRequest(f"`outputs[{index}].parameters` has a value of a wrong type")
