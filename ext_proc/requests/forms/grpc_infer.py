"""KServe's ``ModelInferRequest`` in its gRPC frame (package ``inference``).

Field numbers follow triton-inference-server/common: ``protobuf/grpc_service.proto``. Fields may be
in any order; serializers write them by number, so the first part of a message usually contains the
model, its parameters and its inputs, and the bulk of the tensors follows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ext_proc.requests.forms.grpc_shapes import INPUTS, PLACE, SHAPE, ShapeReader, check_harm
from ext_proc.requests.forms.infer import describe
from ext_proc.requests.parsing import values
from ext_proc.requests.parsing.budget import MAX_INPUTS, MAX_PACKED, MAX_PACKED_BYTES, too_complex
from ext_proc.requests.parsing.errors import BadRequest, Malformed, UnsoundRequest
from ext_proc.requests.parsing.inflate import inflate, is_supported
from ext_proc.requests.parsing.protobuf import BYTES, VARINT, Field, Scanner, signed
from ext_proc.requests.parsing.shapes import WIDTHS, check_bytes, check_room
from ext_proc.requests.parsing.tensors import INTEGERS, NOTHING, READ_INPUTS, Tensor, read_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.routing.values.request import Features

FRAME_HEADER_BYTES: Final = 5
MAX_PARAMETERS: Final = 256
MAX_TYPED_PARTS: Final = 512
"""Maximum fields of a typed tensor (texts, or runs of integers) that are read."""

_MODEL, _VERSION, _ID, _PARAMETERS, _RAW = 1, 2, 3, 4, 7
_KEY, _VALUE = 1, 2
_CALL_NAME, _CALL_VERSION = 1, 2
_NAME, _DATATYPE, _INPUT_PARAMETERS, _CONTENTS = 1, 2, 4, 5
_NAME_BYTES: Final = 4 * values.MAX_NAME_CHARS
_TEXT_BYTES: Final = 65_536
_UNKNOWN_END: Final = 2**63
"""End of a message whose compressed data is cut off."""
_CONTENT_OF: Final = {"INT32": 2, "INT64": 3, "UINT32": 4, "UINT64": 5, "BYTES": 8}

Parameter = bool | int | float | str


@dataclass(slots=True)
class _Input:
    name: str = ""
    datatype: str = ""
    elements: int | None = 1
    """What the shape declares; ``None`` if it is cut off."""
    contents: Field | None = None
    content_bytes: int = 0
    shared: bool = False


@dataclass(slots=True)
class _Message:
    model: str | None = None
    version: str | None = None
    id: str | None = None
    parameters: dict[str, Parameter] = field(default_factory=dict)
    inputs: list[_Input] = field(default_factory=list)
    raw: list[Field] = field(default_factory=list)
    whole: bool = True


def read_grpc(
    features: Features,
    headers: Mapping[str, str],
    body: bytes | memoryview,
    *,
    complete: bool,
) -> Features:
    """Read the first framed ``ModelInferRequest`` of ``body``.

    The features stay unchanged if the message is compressed by something other than gzip or
    deflate.

    Raises:
        BadRequest: The bytes are not a gRPC frame with such a message.
        UnsoundRequest: A shape contradicts its data.
    """
    opened = _open(features, headers, body, complete=complete)
    if opened is None:
        return features
    scanner, end = opened
    try:
        return _describe(features, scanner, _read_message(scanner, end))
    except UnsoundRequest:
        raise
    except BadRequest:
        check_harm(scanner, end)
        raise


def read_model_call(
    features: Features,
    headers: Mapping[str, str],
    body: bytes | memoryview,
    *,
    complete: bool,
) -> Features:
    """Read the model that a ModelReady, ModelMetadata, ModelConfig or ModelStatistics call names.

    All four have the model's name in field 1 and its version in field 2.

    Raises:
        BadRequest: The bytes are not a gRPC frame with such a message.
    """
    opened = _open(features, headers, body, complete=complete)
    if opened is None:
        return features
    scanner, end = opened
    model = version = None
    for item in scanner.fields(0, end):
        if item.number == _CALL_NAME:
            model = _identifier(scanner, item, "name")
        elif item.number == _CALL_VERSION:
            version = _identifier(scanner, item, "version")
    features.model = model or features.model
    features.version = version or features.version
    return features


def _open(
    features: Features, headers: Mapping[str, str], body: bytes | memoryview, *, complete: bool
) -> tuple[Scanner, int] | None:
    """Return the first message and its end, ``None`` if nothing of it can be read."""
    if len(body) < FRAME_HEADER_BYTES:
        if complete:
            raise Malformed("the body has no gRPC message; send one framed message")
        return None
    flag, length = struct.unpack_from(">BI", body)
    content: bytes | memoryview = memoryview(body)[FRAME_HEADER_BYTES:]
    if flag > 1:
        raise BadRequest(f"the gRPC frame has the compressed flag {flag}; it must be 0 or 1")
    if complete and length > len(content):
        raise BadRequest(f"the gRPC frame declares {length} bytes, but {len(content)} follow")
    end = length
    if flag:
        if not is_supported(headers.get("grpc-encoding", "")):
            return None
        whole = length <= len(content)
        content, whole, features.inflated_bytes = inflate(
            content[:length], complete=whole, place="the gRPC message", announced=length
        )
        end = len(content) if whole else _UNKNOWN_END
    return Scanner(content), end


def _read_message(scanner: Scanner, end: int) -> _Message:
    message, shapes = _Message(), ShapeReader(scanner)
    for item in scanner.fields(0, end):
        if item.number == _MODEL:
            message.model = _identifier(scanner, item, "model_name")
        elif item.number == _VERSION:
            message.version = _identifier(scanner, item, "model_version")
        elif item.number == _ID:
            message.id = scanner.text(item, _NAME_BYTES)
        elif item.number == _PARAMETERS:
            _read_parameter(scanner, item, message.parameters)
        elif item.number == INPUTS:
            if len(message.inputs) >= MAX_INPUTS:
                raise too_complex(f"the request has more than {MAX_INPUTS} inputs; send fewer")
            message.inputs.append(_read_input(scanner, item, shapes))
        elif item.number == _RAW and len(message.raw) < MAX_INPUTS:
            if item.kind != BYTES:
                raise BadRequest("raw_input_contents of the request must be bytes")
            message.raw.append(item)
    message.whole = end <= len(scanner.data)
    return message


def _identifier(scanner: Scanner, item: Field, place: str) -> str | None:
    text = scanner.text(item, _NAME_BYTES)
    if text is None and item.whole:
        raise BadRequest(f"{place} is too long; use at most {values.MAX_NAME_CHARS} characters")
    return values.name(text, place)


def _fields(scanner: Scanner, item: Field) -> list[Field]:
    if item.kind != BYTES:
        raise BadRequest(f"field {item.number} of the request must be a message")
    return scanner.fields(item.start, item.end)


def _read_parameter(scanner: Scanner, item: Field, into: dict[str, Parameter]) -> None:
    """Read one entry of a ``map<string, InferParameter>``; an entry cut off is unknown."""
    if not item.whole:
        return
    key: str | None = None
    value: Parameter | None = None
    for part in _fields(scanner, item):
        if part.number == _KEY:
            key = scanner.text(part, _NAME_BYTES)
        elif part.number == _VALUE:
            value = _parameter_value(scanner, part)
    if key is None or value is None:
        return
    if len(into) >= MAX_PARAMETERS:
        raise BadRequest(f"the request has more than {MAX_PARAMETERS} parameters; send fewer")
    into[key] = value


def _parameter_value(scanner: Scanner, item: Field) -> Parameter | None:
    """Read an ``InferParameter``: 1 bool, 2 int64, 3 string, 4 double, 5 uint64."""
    value: Parameter | None = None
    for part in _fields(scanner, item):
        if part.number == 1 and part.kind == VARINT:
            value = bool(part.value)
        elif part.number == 2 and part.kind == VARINT:  # noqa: PLR2004 - int64_param
            value = signed(part.value)
        elif part.number == 3:  # noqa: PLR2004 - string_param
            value = scanner.text(part, _TEXT_BYTES)
        elif part.number == 5 and part.kind == VARINT:  # noqa: PLR2004 - uint64_param
            value = part.value
    return value


def _read_input(scanner: Scanner, item: Field, shapes: ShapeReader) -> _Input:
    found = _Input()
    for part in _fields(scanner, item):
        if part.number == _NAME:
            found.name = scanner.text(part, _NAME_BYTES) or ""
        elif part.number == _DATATYPE:
            found.datatype = scanner.text(part, _NAME_BYTES) or ""
        elif part.number == _INPUT_PARAMETERS:
            parameters: dict[str, Parameter] = {}
            _read_parameter(scanner, part, parameters)
            found.shared = found.shared or "shared_memory_region" in parameters
        elif part.number == SHAPE:
            found.elements = shapes.elements(part, found.elements)
        elif part.number == _CONTENTS:
            found.contents = part
            found.content_bytes += part.end - part.start
    if not item.whole:
        found.elements = None
    return found


def _describe(features: Features, scanner: Scanner, message: _Message) -> Features:
    found = read_tensors(_tensors(scanner, message)) if message.inputs else NOTHING
    made = describe(features, message.id, message.parameters, found, "parameter sequence_id")
    made.model = message.model or features.model
    made.version = message.version or features.version
    if message.inputs:
        try:
            made.tensor_bytes = _check_shapes(message)
        except UnsoundRequest as error:
            error.features = made
            raise
    return made


def _check_shapes(message: _Message) -> int | None:
    """Check the declared shapes against the data, as far as its length is known.

    Returns:
        The bytes that the largest input declares.
    """
    largest: int | None = None
    raw = iter(message.raw)
    for item in message.inputs:
        content = None if item.shared else next(raw, None)
        elements, width = item.elements, WIDTHS.get(item.datatype)
        if elements is None or width is None:
            continue
        declared = elements * width
        if largest is None or declared > largest:
            largest = declared
        if content is not None:
            size = content.end - content.start
            if declared != size:
                check_bytes(elements, item.datatype, size, PLACE)
        elif (
            item.contents is not None
            and not message.raw
            and elements > item.content_bytes
            and message.whole  # otherwise raw contents may follow
        ):
            check_room(elements, item.content_bytes, PLACE)  # an element has a byte or more
    return largest


def _tensors(scanner: Scanner, message: _Message) -> dict[str, Tensor]:
    """Find the data of the relevant inputs, in ``raw_input_contents`` or in ``contents``.

    The k-th raw content belongs to the k-th input that is not in shared memory.
    """
    tensors: dict[str, Tensor] = {}
    raw = iter(message.raw)
    for item in message.inputs:
        content = None if item.shared else next(raw, None)
        if item.shared or item.name not in READ_INPUTS or item.name in tensors:
            continue
        if content is not None:
            data = scanner.data[content.start : content.end]
            tensors[item.name] = Tensor(item.name, item.datatype, data, content.whole)
        elif item.contents is not None and not message.raw:
            tensor = _typed_contents(scanner, item, item.contents)
            if tensor is not None:
                tensors[item.name] = tensor
    return tensors


def _typed_contents(scanner: Scanner, item: _Input, contents: Field) -> Tensor | None:
    """Convert ``InferTensorContents`` to the raw layout; ``None`` if its datatype is irrelevant."""
    number = _CONTENT_OF.get(item.datatype)
    if number is None or contents.kind != BYTES:
        return None
    raw = bytearray()
    whole = contents.whole
    parts = scanner.fields(contents.start, contents.end, MAX_TYPED_PARTS + 1)
    for index, part in enumerate(parts):
        if index >= MAX_TYPED_PARTS or len(raw) > values.MAX_PROMPT_BYTES:
            whole = False
            break
        if part.number != number:
            continue
        if item.datatype == "BYTES":
            piece, all_read = _text(scanner, part)
        else:
            width = INTEGERS[item.datatype].size
            piece, all_read = _integers(scanner, item.datatype, part, len(raw) // width)
        raw += piece
        whole = whole and all_read
        if not all_read:
            break
    return Tensor(item.name, item.datatype, bytes(raw), whole)


def _text(scanner: Scanner, part: Field) -> tuple[bytes, bool]:
    """Write a text after its length, as raw tensors do; if it is cut, the length exceeds it."""
    if part.kind != BYTES:
        raise BadRequest("bytes_contents of the request must be bytes")
    kept = scanner.data[part.start : min(part.end, part.start + values.MAX_PROMPT_BYTES)]
    cut = not part.whole or len(kept) < part.end - part.start
    return struct.pack("<I", len(kept) + cut) + kept, not cut


def _integers(scanner: Scanner, datatype: str, part: Field, already: int) -> tuple[bytes, bool]:
    """Write the integers of a packed field, or the one of an unpacked field, little-endian.

    Returns:
        The bytes, and whether they hold every integer.
    """
    most = MAX_PACKED - already
    if part.kind == VARINT:
        numbers, all_read = [signed(part.value)], True
    else:
        if part.end - part.start > MAX_PACKED_BYTES:
            part = part._replace(end=part.start + MAX_PACKED_BYTES, whole=False)
        numbers = scanner.varints(part, most + 1)
        all_read = part.whole and len(numbers) <= most
        del numbers[most:]
    if datatype == "UINT64":
        numbers = [number % 2**64 for number in numbers]
    try:
        packed = struct.pack(f"<{len(numbers)}{INTEGERS[datatype].format[1:]}", *numbers)
    except struct.error:
        raise BadRequest(f"an integer of a {datatype} input does not fit that datatype") from None
    return packed, all_read
