"""KServe's HTTP ``infer``: JSON, or JSON followed by binary tensors, or one raw tensor.

Source: Triton's binary tensor data extension; server: ``src/http_server.cc``. With
``inference-header-content-length: N`` the JSON is the first N bytes. The tensors follow in the
order of the inputs, each ``parameters.binary_data_size`` long; inputs with inline ``data`` or in
shared memory are skipped. N = 0 means one raw tensor and no JSON.

If only a first part of the body is read, everything in the JSON after the cut is lost. tritonclient
writes ``id``, then ``inputs``, then ``parameters``. So the sequence after a large inline tensor is
not seen; with binary tensors the JSON comes first and is seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ext_proc.requests.forms.infer import describe
from ext_proc.requests.parsing import values
from ext_proc.requests.parsing.errors import BadRequest
from ext_proc.requests.parsing.json_prefix import Document, read_object
from ext_proc.requests.parsing.tensors import (
    NOTHING,
    READ_INPUTS,
    InputValues,
    Tensor,
    from_json,
    read_tensors,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.routing.values.request import Features

LENGTH_HEADER: Final = "inference-header-content-length"
MAX_INPUTS: Final = 1024

_MAX_LENGTH_DIGITS: Final = 10
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
    if json_end == 0:
        return features
    if json_end is None:
        document = read_object(view, complete=complete, place=_PLACE)
        blobs = None
    else:
        if json_end > len(view) and complete:
            raise BadRequest(
                f"{LENGTH_HEADER} is {json_end}, but the body has only {len(view)} bytes"
            )
        whole = json_end <= len(view)
        document = read_object(view[:json_end], complete=whole, place=_PLACE)
        blobs = view[json_end:]
    inputs = document.members.get("inputs")
    if inputs is not None and not isinstance(inputs, list):
        raise BadRequest(f"`inputs` must be an array, not {values.json_type(inputs)}")
    found = NOTHING
    if inputs:
        found = read_tensors(_tensors(inputs, document, blobs, complete=complete))
    return _describe(features, document.members, found)


def _json_length(headers: Mapping[str, str]) -> int | None:
    text = headers.get(LENGTH_HEADER)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_LENGTH_DIGITS:
        raise BadRequest(f"{LENGTH_HEADER} must be the number of JSON bytes, not {text[:32]!r}")
    return int(text)


def _describe(features: Features, members: dict[str, Any], found: InputValues) -> Features:
    parameters = members.get("parameters")
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict):
        raise BadRequest(f"`parameters` must be an object, not {values.json_type(parameters)}")
    return describe(features, members.get("id"), parameters, found, "`parameters.sequence_id`")


def _tensors(
    inputs: list[Any],
    document: Document,
    blobs: memoryview | None,
    *,
    complete: bool,
) -> dict[str, Tensor]:
    """Find the data of the relevant inputs, inline or in the binary part."""
    if len(inputs) > MAX_INPUTS:
        raise BadRequest(f"the request has more than {MAX_INPUTS} inputs; send fewer")
    tensors: dict[str, Tensor] = {}
    offset = 0
    for index, item in enumerate(inputs):
        if not isinstance(item, dict):
            raise BadRequest(f"`inputs[{index}]` must be an object, not {values.json_type(item)}")
        name, datatype, data = item.get("name"), item.get("datatype"), item.get("data")
        size = _binary_size(item, index) if data is None else None
        start, offset = offset, offset + (size or 0)
        if not isinstance(name, str) or not isinstance(datatype, str):
            continue
        if name not in READ_INPUTS or name in tensors:
            continue
        if isinstance(data, list):
            last = index == len(inputs) - 1
            whole = not (last and document.is_cut("inputs"))
            inline = from_json(name, datatype, data, whole=whole)
            if inline is not None:
                tensors[name] = inline
        elif size is not None and blobs is not None:
            blob = blobs[start : start + size]
            if complete and len(blob) < size:
                raise BadRequest(
                    f"`inputs[{index}]` declares {size} binary bytes,"
                    f" but the body has only {len(blob)}"
                )
            tensors[name] = Tensor(name, datatype, blob, whole=len(blob) == size)
    return tensors


def _binary_size(item: dict[str, Any], index: int) -> int | None:
    """Return the size of this input's share of the binary part; ``None`` if it has none."""
    parameters = item.get("parameters")
    if not isinstance(parameters, dict) or "shared_memory_region" in parameters:
        return None
    size = parameters.get("binary_data_size")
    if size is None:
        return None
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise BadRequest(f"`inputs[{index}].parameters.binary_data_size` must be a byte count")
    return size
