"""Reads the input tensors of an inference request, independent of the protocol.

Triton's language-model backends agree on few names (vllm_backend ``text_input``, ``prompt``;
tensorrtllm_backend ``text_input``, ``QUERY``, ``input_ids``, ``request_output_len``,
``lora_task_id``). Only tensors of these names are read, and only their first bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from ext_proc.requests.parsing.budget import MAX_PROMPTS, MAX_TEXTS, Levels
from ext_proc.requests.parsing.cut_text import CutText
from ext_proc.requests.parsing.errors import BadRequest
from ext_proc.requests.parsing.shapes import flattened
from ext_proc.requests.parsing.values import MAX_PROMPT_BYTES, label, positive

if TYPE_CHECKING:
    from collections.abc import Mapping

TEXT_INPUTS: Final = ("text_input", "prompt", "QUERY")
TOKEN_INPUT: Final = "input_ids"  # noqa: S105 - a tensor's name
LENGTH_INPUTS: Final = ("max_tokens", "request_output_len")
ADAPTER_INPUT: Final = "lora_task_id"
SAMPLING_INPUT: Final = "sampling_parameters"
READ_INPUTS: Final = frozenset(
    (*TEXT_INPUTS, TOKEN_INPUT, *LENGTH_INPUTS, ADAPTER_INPUT, SAMPLING_INPUT)
)
"""Names of the tensors that are relevant to a router."""

MAX_SAMPLING_BYTES: Final = 65_536
"""Larger ``sampling_parameters`` are not read."""

SEPARATOR: Final = b"\0"
"""Separator of the prompts of a batch."""

INTEGERS: Final = {
    "INT32": struct.Struct("<i"),
    "UINT32": struct.Struct("<I"),
    "INT64": struct.Struct("<q"),
    "UINT64": struct.Struct("<Q"),
}
"""Datatypes of token ids and limits."""

_WIDER: Final = {"INT32": "q", "UINT32": "Q"}
"""Formats of the integers that Triton takes for these datatypes in JSON."""

_WIDE: Final = 8
"""Bytes of an id whose upper half is always zero."""


class Tensor(NamedTuple):
    """An input whose name is one of ``READ_INPUTS``."""

    name: str
    datatype: str
    data: bytes | memoryview
    """In Triton's raw layout: little-endian, each BYTES element after its 4-byte length."""
    whole: bool = True
    """``data`` is complete."""


class InputValues(NamedTuple):
    """Values of the input tensors."""

    prompt: bytes | None = None
    partial: bool = False
    token_ids: bool = False
    """The prompt is 32-bit token ids, not text."""
    max_tokens: int | None = None
    adapter: str | None = None
    recomputed: bool = False
    """The engine computes the whole prompt, whatever its cache holds."""
    spans: tuple[tuple[int, int], ...] = ()
    """Begin and end of each text of a batch; empty = it is one prompt."""


NOTHING: Final = InputValues()


def read_tensors(tensors: Mapping[str, Tensor]) -> InputValues:
    """Read prompt, token limit and adapter from the inputs, given by name.

    Raises:
        BadRequest: The lengths in a BYTES tensor do not match its data.
    """
    if not tensors:
        return NOTHING
    prompt, partial, token_ids, spans = _prompt(tensors)
    limit = adapter = None
    recomputed = False
    if SAMPLING_INPUT in tensors:
        sampling = _sampling(tensors[SAMPLING_INPUT])
        limit = positive(sampling.get("max_tokens"))
        adapter = label(sampling.get("lora_name"))
        recomputed = sampling.get("prompt_logprobs") is not None
    for name in LENGTH_INPUTS:
        if name in tensors:
            limit = positive(_integer(tensors[name])) or limit
    if ADAPTER_INPUT in tensors:
        task = _integer(tensors[ADAPTER_INPUT])
        adapter = adapter if task is None else str(task)
    return InputValues(prompt, partial, token_ids, limit, adapter, recomputed, spans)


def from_json(
    name: str, datatype: str, data: list[Any], *, whole: bool, levels: Levels | None = None
) -> Tensor | None:
    """Convert a tensor in JSON, flat or nested, to the raw layout.

    Args:
        name: Its name.
        datatype: Its datatype.
        data: Its elements.
        whole: Whether it is complete.
        levels: Levels that the request's tensors may still have; by default those of one request.

    Returns:
        The tensor; ``None`` if its datatype is irrelevant to a router, or arrays stand beside
        elements.

    Raises:
        BadRequest: An element does not fit the datatype.
        UnsoundRequest: The tensors nest too often.
    """
    integer = INTEGERS.get(datatype)
    if integer is None and datatype != "BYTES":
        return None
    flat = flattened(data, levels or Levels())
    if flat is None:
        return None
    if integer is None:
        return _texts_from_json(name, flat, whole=whole)
    most = MAX_PROMPT_BYTES // integer.size
    whole = whole and len(flat) <= most
    numbers = flat if len(flat) <= most else flat[:most]
    try:
        raw = struct.pack(f"<{len(numbers)}{integer.format[1:]}", *numbers)
    except struct.error:
        if list in map(type, numbers):
            return None
        narrowed = _narrowed(numbers, datatype)
        if narrowed is None:
            raise BadRequest(
                f"the elements of the {datatype} input {name!r} must be integers of that size"
            ) from None
        raw = narrowed
    return Tensor(name, datatype, raw, whole)


def _narrowed(numbers: list[Any], datatype: str) -> bytes | None:
    """Return the lower halves of integers of 64 bits, as Triton keeps them in 32."""
    wide = _WIDER.get(datatype)
    if wide is None:
        return None
    try:
        packed = struct.pack(f"<{len(numbers)}{wide}", *numbers)
    except struct.error:
        return None
    return memoryview(packed).cast("I")[::2].tobytes()


def _texts_from_json(name: str, flat: list[Any], *, whole: bool) -> Tensor | None:
    raw = bytearray()
    for element in flat[:MAX_TEXTS]:
        if not isinstance(element, str):
            if isinstance(element, list):
                return None
            raise BadRequest(f"an element of the BYTES input {name!r} must be a string")
        text = element.encode()
        # A text that is cut off has a length beyond its data, as in a cut raw tensor.
        raw += struct.pack("<I", len(text) + isinstance(element, CutText)) + text
        if len(raw) > MAX_PROMPT_BYTES:
            whole = False
            break
    return Tensor(name, "BYTES", bytes(raw), whole and len(flat) <= MAX_TEXTS)


def _prompt(
    by_name: Mapping[str, Tensor],
) -> tuple[bytes | None, bool, bool, tuple[tuple[int, int], ...]]:
    """Return the prompt, whether something of it is missing, whether it is ids, and its spans."""
    for name in TEXT_INPUTS:
        tensor = by_name.get(name)
        if tensor is not None and tensor.datatype == "BYTES":
            joined, missing, spans = _join(tensor)
            return joined, missing, False, spans
    tensor = by_name.get(TOKEN_INPUT)
    if tensor is None or tensor.datatype not in INTEGERS:
        return None, False, False, ()
    width = INTEGERS[tensor.datatype].size
    kept = min(len(tensor.data), MAX_PROMPT_BYTES)
    partial = not tensor.whole or kept < len(tensor.data)
    data = tensor.data[: kept - kept % width]
    if width == _WIDE:
        # Every second word is the low one; vocabularies are far smaller than 2**32.
        data = memoryview(data).cast("I")[::2].tobytes()
    return bytes(data), partial, True, ()


def _join(tensor: Tensor) -> tuple[bytes, bool, tuple[tuple[int, int], ...]]:
    """Return the joined texts of a BYTES tensor, whether something is missing, and their spans."""
    texts, missing = elements(tensor)
    joined = SEPARATOR.join(texts)
    spans: list[tuple[int, int]] = []
    if len(texts) > 1:
        begin = 0
        for text in texts[:MAX_PROMPTS]:
            end = begin + len(text)
            spans.append((begin, min(end, MAX_PROMPT_BYTES)))
            begin = end + len(SEPARATOR)
            if begin >= MAX_PROMPT_BYTES:
                break
    return joined[:MAX_PROMPT_BYTES], missing or len(joined) > MAX_PROMPT_BYTES, tuple(spans)


def elements(tensor: Tensor) -> tuple[list[bytes], bool]:
    """Return the elements of a BYTES tensor within bounds, and whether something is missing.

    Raises:
        BadRequest: A length does not match the data, although the tensor is complete.
    """
    texts: list[bytes] = []
    data, position, size = tensor.data, 0, 0
    end = len(data)
    while position + 4 <= end and len(texts) < MAX_TEXTS and size <= MAX_PROMPT_BYTES:
        length = int.from_bytes(data[position : position + 4], "little")
        position += 4
        available = min(length, end - position)
        kept = min(available, MAX_PROMPT_BYTES)
        texts.append(bytes(data[position : position + kept]))
        size += kept
        if available < length and tensor.whole:
            raise BadRequest(
                f"an element of the BYTES input {tensor.name!r} declares {length} bytes, but only "
                f"{available} are left; send each element after its 4-byte length"
            )
        if kept < available:
            break
        position += length
    return texts, not tensor.whole or position != end


def _integer(tensor: Tensor) -> int | None:
    """Return the first element of an integer tensor, ``None`` if it was not read."""
    layout = INTEGERS.get(tensor.datatype)
    if layout is None or len(tensor.data) < layout.size:
        return None
    value: int = layout.unpack_from(tensor.data)[0]
    return value


def _sampling(tensor: Tensor) -> dict[str, Any]:
    """Return vLLM's ``sampling_parameters`` (JSON in a BYTES tensor), empty if unreadable."""
    if tensor.datatype != "BYTES" or len(tensor.data) > MAX_SAMPLING_BYTES:
        return {}
    texts, _ = elements(tensor)
    return sampling_parameters(texts[0] if texts else b"")


def sampling_parameters(text: bytes | str) -> dict[str, Any]:
    """Read a JSON object leniently; empty if it is not an object or too long."""
    if len(text) > MAX_SAMPLING_BYTES:
        return {}
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
