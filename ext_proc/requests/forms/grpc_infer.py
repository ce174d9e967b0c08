"""KServe's ``ModelInferRequest`` in its gRPC frame (package ``inference``).

Field numbers follow triton-inference-server/common: ``protobuf/grpc_service.proto``. Fields may be
in any order; serializers write them by number, so the first part of a message usually contains the
model, its parameters and its inputs, and the bulk of the tensors follows.

What is unusual (groups, fields of a wrong type, messages that are there twice), protobuf's own
parser reads: it writes the message anew without them, and that is read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from ext_proc.requests.forms.grpc_shapes import INPUTS, PLACE, SHAPE, ShapeReader, check_harm
from ext_proc.requests.forms.infer import describe
from ext_proc.requests.parsing import values
from ext_proc.requests.parsing.budget import (
    MAX_INPUTS,
    MAX_PACKED,
    MAX_PACKED_BYTES,
    MAX_REWRITTEN,
    too_complex,
)
from ext_proc.requests.parsing.errors import BadRequest, Malformed, UnsoundRequest
from ext_proc.requests.parsing.inflate import inflate, is_supported
from ext_proc.requests.parsing.protobuf import BYTES, FIXED64, VARINT, Field, Scanner, signed
from ext_proc.requests.parsing.shapes import WIDTHS, check_bytes, check_room
from ext_proc.requests.parsing.tensors import INTEGERS, NOTHING, READ_INPUTS, Tensor, read_tensors
from ext_proc.routing.values.refusal import RefusalKind
from tidegate_api.kserve.v1 import kserve_pb2

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
BAD_SHAPE: Final = RefusalKind.BAD_SHAPE
_IDENTITY: Final = "identity"
_UNKNOWN_END: Final = 2**63
"""End of a message whose compressed data is cut off."""
_CONTENT_OF: Final = {"INT32": 2, "INT64": 3, "UINT32": 4, "UINT64": 5, "BYTES": 8}

Parameter = bool | int | float | str


@dataclass(slots=True)
class _Input:
    name: str = ""
    datatype: str = ""
    elements: int | None = 1
    """What ``ShapeReader.elements`` returned last."""
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
    return _read(features, *opened)


def _read(features: Features, scanner: Scanner, end: int) -> Features:
    """Read a message, and again as protobuf writes it where the scanner is not sure of it."""
    head = (features.request_id, features.sequence_id, features.timeout_s)
    models = features.model, features.version
    unsound: UnsoundRequest | None = None
    try:
        made = _describe(features, scanner, _read_message(scanner, end))
    except Malformed:
        raise
    except UnsoundRequest as error:
        if not scanner.unsure or error.kind is not BAD_SHAPE:
            raise
        unsound = error
    except BadRequest:
        if not scanner.unsure:
            check_harm(scanner, end)
            raise
    if not scanner.unsure:
        return made
    canonical = _rewritten(kserve_pb2.ModelInferRequest(), scanner.data, end)
    if canonical is None:
        if unsound is not None:
            raise unsound
        features.cut = True
        return features
    features.request_id, features.sequence_id, features.timeout_s = head
    features.model, features.version = models
    # A scanner is sure of what protobuf wrote, so there is no third reading.
    return _read(features, Scanner(canonical, scanner.left), len(canonical))


def _rewritten(
    message: kserve_pb2.ModelInferRequest | kserve_pb2.ModelRequest,
    data: memoryview,
    end: int,
) -> bytes | None:
    """Return a message as protobuf writes it; ``None`` if it is cut off or too long.

    Raises:
        Malformed: It is none.
    """
    if end > min(len(data), MAX_REWRITTEN):
        return None
    try:
        message.ParseFromString(bytes(data[:end]))
    except DecodeError as error:
        raise Malformed(f"the gRPC message is no {type(message).__name__}: {error}") from None
    message.DiscardUnknownFields()
    return message.SerializeToString()


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
    model, version = _read_call(scanner, end)
    if scanner.unsure:
        canonical = _rewritten(kserve_pb2.ModelRequest(), scanner.data, end)
        if canonical is not None:
            model, version = _read_call(Scanner(canonical), len(canonical))
    features.model = model or features.model
    features.version = version or features.version
    return features


def _read_call(scanner: Scanner, end: int) -> tuple[str | None, str | None]:
    model = version = None
    wrong: dict[int, BadRequest] = {}
    for item in scanner.fields(0, end):
        if item.number == _CALL_NAME:
            model = _identifier(scanner, item, "name", wrong)
        elif item.number == _CALL_VERSION:
            version = _identifier(scanner, item, "version", wrong)
    _hold(wrong)
    return model, None if version is None else values.version(version)


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
    # Without an encoding gRPC's servers take the flag for none.
    encoding = headers.get("grpc-encoding", _IDENTITY) if flag else _IDENTITY
    if encoding != _IDENTITY:
        if not is_supported(encoding):
            return None
        whole = length <= len(content)
        content, whole, features.inflated_bytes = inflate(
            content[:length], complete=whole, place="the gRPC message", announced=length
        )
        end = len(content) if whole else _UNKNOWN_END
    return Scanner(content), end


def _read_message(scanner: Scanner, end: int) -> _Message:
    message, shapes = _Message(), ShapeReader(scanner)
    wrong: dict[int, BadRequest] = {}  # by field: of several values the last counts
    for item in scanner.fields(0, end):
        if item.number == _MODEL:
            message.model = _identifier(scanner, item, "model_name", wrong)
        elif item.number == _VERSION:
            message.version = _identifier(scanner, item, "model_version", wrong)
        elif item.number == _ID:
            message.id = scanner.text(item, _NAME_BYTES)
        elif item.number == _PARAMETERS:
            _read_parameter(scanner, item, message.parameters)
        elif item.number == INPUTS:
            if len(message.inputs) >= MAX_INPUTS:
                raise too_complex(f"the request has more than {MAX_INPUTS} inputs; send fewer")
            message.inputs.append(_read_input(scanner, item, shapes))
        elif item.number == _RAW and len(message.raw) < MAX_INPUTS:
            if item.kind == BYTES:
                message.raw.append(item)
            else:
                scanner.unsure = True
    message.whole = end <= len(scanner.data)
    _hold(wrong)
    return message


def _hold(wrong: Mapping[int, BadRequest]) -> None:
    """Raise the first error of the values that count."""
    for error in wrong.values():
        raise error


def _identifier(
    scanner: Scanner, item: Field, place: str, wrong: dict[int, BadRequest]
) -> str | None:
    """Return a name; what is wrong with it is noted by its field's number."""
    wrong.pop(item.number, None)
    text = scanner.text(item, _NAME_BYTES)
    if text is None and item.whole and item.kind == BYTES:
        most = values.MAX_NAME_CHARS
        wrong[item.number] = BadRequest(f"{place} is too long; use at most {most} characters")
    if text is None:
        return None
    try:
        return values.name(values.c_text(text), place)
    except BadRequest as error:
        wrong[item.number] = error
        return None


def _fields(scanner: Scanner, item: Field) -> list[Field]:
    if item.kind != BYTES:
        scanner.unsure = True
        return []
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
            if value is not None:
                scanner.unsure = True  # protobuf merges the two
            value = _parameter_value(scanner, part)
    if key is None or value is None:
        return
    if len(into) >= MAX_PARAMETERS:
        raise too_complex(f"the request has more than {MAX_PARAMETERS} parameters; send fewer")
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
        elif part.number == 4 and part.kind == FIXED64:  # noqa: PLR2004 - double_param
            value = float(struct.unpack_from("<d", scanner.data, part.start)[0])
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
            found.content_bytes += part.end - part.start
            if found.contents is not None or part.kind != BYTES:
                scanner.unsure = True
                continue
            found.contents = part
    if not item.whole:
        found.elements = None
    return found


def _describe(features: Features, scanner: Scanner, message: _Message) -> Features:
    found = read_tensors(_tensors(scanner, message)) if message.inputs else NOTHING
    made = describe(features, message.id, message.parameters, found, "parameter sequence_id")
    made.cut = not message.whole
    made.model = message.model or features.model
    made.version = features.version if not message.version else values.version(message.version)
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
            width = WIDTHS.get(values.c_text(item.datatype))
            if elements is None or width is None:
                continue
        declared = elements * width
        if largest is None or declared > largest:
            largest = declared
        if content is not None:
            size = content.end - content.start
            if declared != size:
                check_bytes(max(0, elements), values.c_text(item.datatype), size, PLACE)
        elif (
            item.contents is not None
            and not message.raw
            and elements > item.content_bytes
            and message.whole  # otherwise raw contents may follow
        ):
            check_room(elements, item.content_bytes, PLACE)  # an element has a byte or more
    return largest if largest is None else max(0, largest)


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
            if part.kind != BYTES:
                scanner.unsure = True
                continue
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
    layout = INTEGERS[datatype]
    try:
        packed = struct.pack(f"<{len(numbers)}{layout.format[1:]}", *numbers)
    except struct.error:  # protobuf keeps the low bits
        kept = [number.to_bytes(8, "little", signed=True)[: layout.size] for number in numbers]
        packed = b"".join(kept)
    return packed, all_read
