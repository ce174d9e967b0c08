"""What is fuzzed of declared shapes: infer requests over HTTP and gRPC beside readers of our own.

Rules:

1. What is read agrees with its shapes: as many elements, or bytes, as the request has.
2. What is refused for its shapes contradicts them, or is what else the reader calls unsound.
3. A first part of a request that is read whole contradicts nothing.
4. Nothing but a ``BadRequest`` is raised, within a bounded time.
"""

from __future__ import annotations

import json
import time
from math import prod
from typing import Any, Final

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from ext_proc.requests import BadRequest, UnsoundRequest, read_body, read_head
from ext_proc.requests.forms.http_infer import LENGTH_HEADER
from ext_proc.requests.parsing.budget import MAX_LONG_DIMENSIONS
from ext_proc.requests.parsing.shapes import MAX_BESIDE_ZERO, MAX_ELEMENTS, WIDTHS
from ext_proc.routing.values.refusal import RefusalKind
from support.streams import GRPC_INFER

HTTP_INFER: Final = "/v2/models/toy-llm/infer"
IN_JSON: Final = frozenset(WIDTHS) - {"FP16", "BF16"}
"""Datatypes whose elements are counted in JSON."""
MAX_CPU_S: Final = 0.5
"""Far above what the bounds allow, as a fuzzer counts what it covers."""


class _RepeatedKeyError(ValueError):
    """Readers differ in what they take of a repeated key."""


def one_request(data: bytes) -> None:
    """Read ``data`` as the request that its first bytes choose, and hold the rules."""
    if len(data) < 3:
        return
    which, cut, length = data[:3]
    body = data[3:]
    started = time.thread_time()
    if which % 2:
        _http(body, cut, length)
    else:
        _grpc(body, cut)
    assert time.thread_time() - started < MAX_CPU_S


def _read(path: str, headers: dict[str, str], body: bytes, *, complete: bool) -> BadRequest | None:
    """Return what the reader holds against a body."""
    try:
        read_body(read_head("POST", path, headers), headers, body, complete=complete)
    except BadRequest as error:
        return error
    return None


def _first_parts(path: str, headers: dict[str, str], body: bytes, cut: int) -> None:
    for end in {len(body) * cut // 256, max(0, len(body) - 1 - cut % 8)}:
        error = _read(path, headers, body[:end], complete=False)
        assert error is None, f"the first {end} bytes: {error}"


# --- gRPC -----------------------------------------------------------------------------------------


def _grpc(content: bytes, cut: int) -> None:
    body = b"\0" + len(content).to_bytes(4, "big") + content
    error = _read(GRPC_INFER, {}, body, complete=True)
    try:
        message = service_pb2.ModelInferRequest.FromString(content)
    except DecodeError:
        return
    if any("shared_memory_region" in each.parameters for each in message.inputs):
        return
    if error is None:
        assert not (wrong := _contradictions(message)), wrong
        _first_parts(GRPC_INFER, {}, body, cut)
    elif isinstance(error, UnsoundRequest) and error.kind is RefusalKind.BAD_SHAPE:
        room = len(content)
        assert _contradictions(message, room) or _is_too_much(
            [list(each.shape) for each in message.inputs]
        ), error


def _contradictions(message: Any, room: int | None = None) -> list[str]:
    """Return the inputs whose data is not what they declare, or could not be in ``room`` bytes."""
    found = []
    raw = list(message.raw_input_contents)
    for index, each in enumerate(message.inputs):
        width, declared = WIDTHS.get(each.datatype), prod(each.shape)
        if room is not None and declared > room:
            found.append(each.name)
        if width is None:
            continue
        if index < len(raw):
            size = declared * width
            agrees = (
                size <= len(raw[index]) if each.datatype == "BYTES" else size == len(raw[index])
            )
        else:
            agrees = bool(raw) or not each.HasField("contents")
            agrees = agrees or declared <= each.contents.ByteSize()
        if not agrees:
            found.append(each.name)
    return found


def _is_too_much(shapes: list[list[int]]) -> bool:
    """Return whether shapes are refused whatever the data is."""
    return sum(map(len, shapes)) > MAX_LONG_DIMENSIONS or any(
        prod(max(size, 1) for size in shape) > (MAX_BESIDE_ZERO if 0 in shape else MAX_ELEMENTS)
        for shape in shapes
    )


# --- HTTP -----------------------------------------------------------------------------------------


def _http(body: bytes, cut: int, length: int) -> None:
    headers = {"content-length": str(len(body))}
    end = len(body)
    if length < 255:
        end = min(len(body), len(body) * length // 254)
        headers[LENGTH_HEADER] = str(end)
        if not end:
            return
    error = _read(HTTP_INFER, headers, body, complete=True)
    try:
        document = json.loads(body[:end], object_pairs_hook=_members)
    except (_RepeatedKeyError, RecursionError, ValueError):
        return
    if error is None:
        assert not (wrong := _lies(document["inputs"], len(body))), wrong
        _first_parts(HTTP_INFER, headers, body, cut)
    elif isinstance(error, UnsoundRequest) and error.kind is RefusalKind.BAD_SHAPE:
        inputs = document.get("inputs")
        made = [each for each in inputs if isinstance(each, dict)] if inputs else []
        shapes = [each["shape"] for each in made if isinstance(each.get("shape"), list)]
        sizes = [[size for size in shape if type(size) is int and size >= 0] for shape in shapes]
        too_long = any(prod(each) > len(body) for each in sizes)  # beside other mistakes
        assert too_long or _lies(made, len(body)) or _is_too_much(sizes), error


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _RepeatedKeyError
    return members


def _leaves(value: Any) -> int:
    return sum(map(_leaves, value)) if isinstance(value, list) else 1


def _lies(inputs: list[dict[str, Any]], room: int) -> list[Any]:
    """Return the inputs whose data is not what they declare."""
    found = []
    for each in inputs:
        shape, datatype = each.get("shape"), each.get("datatype")
        if not isinstance(shape, list) or not all(type(size) is int for size in shape):
            continue
        declared, width = prod(shape), WIDTHS.get(str(datatype))
        parameters = each.get("parameters")
        size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
        if isinstance(each.get("data"), list):
            agrees = declared == _leaves(each["data"]) if datatype in IN_JSON else declared <= room
        elif type(size) is int and "shared_memory_region" not in parameters and width is not None:
            agrees = declared * width <= size if datatype == "BYTES" else declared * width == size
        else:
            continue
        if not agrees:
            found.append(each)
    return found
