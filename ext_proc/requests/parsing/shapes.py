"""Checks declared shapes of tensors against their data, in exact arithmetic.

Triton 2.51 reserves the memory that a shape declares before it reads JSON data, and computes byte
sizes modulo 2**64: a shape above the machine's memory or one whose size wraps around ends the
server, or a backend's process (``tests/contract/fixtures/triton-2.51.0/mistakes.json``).

Rules:

1. A shape is refused only if it contradicts the data for certain; what lies beyond the part that
   was read contradicts nothing.
2. Data in JSON is walked level by level, by C functions for all arrays of a level: its elements are
   counted, and types that Triton rejects with a 5xx are a ``BadRequest``. Among more than ``FEW``
   numbers of a level a boolean is not found, nor a negative or too large one.
3. Outputs have no declared size: what a model will answer cannot be checked.
4. A shape costs time by its length, which its data does not limit, so its length is bounded.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from ext_proc.requests.parsing.budget import MAX_CONTAINERS, MAX_DIMENSIONS, MAX_UNEVEN, Levels
from ext_proc.requests.parsing.errors import BadRequest, UnsoundRequest
from ext_proc.routing.values.refusal import RefusalKind

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTHS: Final = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
    "BYTES": 4,
}
"""Bytes of an element, by datatype; of BYTES the least: each has a length before it."""

MAX_ELEMENTS: Final = 2**63 - 1
"""No tensor has more; a shape that exceeds it is refused before its product is known."""

MAX_BESIDE_ZERO: Final = MAX_ELEMENTS // 8
"""Most elements of a shape with dimensions of 0, if these were left out: Triton and numpy multiply
the others too, with the bytes of an element, and an overflow ends the server or the model."""

FEW: Final = 64
"""The elements of a level of at most so many numbers are checked one by one."""

_INT64_END: Final = 2**63


def count(shape: Sequence[Any], place: str | int, most: int = MAX_DIMENSIONS) -> int:
    """Return the number of elements of a shape.

    Args:
        shape: Its dimensions.
        place: Name of the tensor in error messages, or its number among the inputs.
        most: Maximum number of dimensions.

    Raises:
        BadRequest: A dimension is negative or no integer.
        UnsoundRequest: There are more than ``MAX_ELEMENTS``, or too many dimensions.
    """
    return max(0, multiply(shape, place, most=most))


def multiply(
    shape: Sequence[Any], place: str | int, before: int = 1, most: int = MAX_DIMENSIONS
) -> int:
    """Return the product of the dimensions that are not 0, negative if there are any of 0.

    Args:
        shape: The dimensions, or the last of them.
        place: Name of the tensor in error messages, or its number among the inputs.
        before: What is returned for the dimensions before these.
        most: Maximum number of dimensions.

    Raises:
        BadRequest: A dimension is negative or no integer.
        UnsoundRequest: The product is above the bound, a dimension is below -1, or there are too
            many dimensions.
    """
    if len(shape) > most:
        raise _bad(f"the shape of {_named(place)} has too many dimensions")
    product, zero = abs(before), before < 0
    for size in shape:
        if type(size) is not int or size < 0:
            raise _no_dimension(size, place)
        if not size:
            zero = True
            continue
        product *= size
        if product > MAX_ELEMENTS:
            raise _bad(f"the shape of {_named(place)} has more than {MAX_ELEMENTS} elements")
    if not zero:
        return product
    if product > MAX_BESIDE_ZERO:
        raise _bad(f"the shape of {_named(place)} has too many elements beside its 0")
    return -product


def _no_dimension(size: object, place: str | int) -> BadRequest:
    if type(size) is int and size < -1:
        # Triton multiplies it all the same: [-2**63, 0] of BYTES ends the model's process.
        return _bad(f"the shape of {_named(place)} has a negative dimension")
    return BadRequest(f"each dimension of {_named(place)} must be an integer of at least 0")


def check_bytes(elements: int, datatype: str, size: int, place: str | int) -> None:
    """Check a tensor's declared elements against the bytes of its raw data.

    Args:
        elements: Number of declared elements.
        datatype: Its datatype.
        size: Bytes of its raw data.
        place: Name of the tensor in error messages, or its number among the inputs.

    Raises:
        UnsoundRequest: They contradict each other.
    """
    width = WIDTHS.get(datatype)
    if width is None:
        return
    declared = elements * width
    if declared > size or (declared != size and datatype != "BYTES"):
        at_least = "at least " if datatype == "BYTES" else ""
        raise _bad(
            f"{_named(place)} declares {elements} elements of {datatype},"
            f" which are {at_least}{declared} bytes, but its data has {size}"
        )


def check_elements(declared: int, present: int, place: str | int) -> None:
    """Check a tensor's declared elements against those of its data.

    Raises:
        UnsoundRequest: They differ.
    """
    if declared != present:
        raise _bad(f"{_named(place)} declares {declared} elements, but its data has {present}")


def check_room(declared: int, room: int, place: str | int) -> None:
    """Check a tensor's declared elements against the bytes of the data that holds them.

    Raises:
        UnsoundRequest: No data of that length holds so many elements.
    """
    if declared > room:
        raise _bad(
            f"{_named(place)} declares {declared} elements, but its data has only {room} bytes"
        )


def count_json(
    data: list[Any], datatype: str, place: str | int, levels: Levels | None = None
) -> int | None:
    """Count the elements of a tensor in JSON, flat or nested.

    Args:
        data: The tensor.
        datatype: Its datatype.
        place: Name of the tensor in error messages, or its number among the inputs.
        levels: Levels that the request's tensors may still have; by default those of one request.

    Returns:
        The number; ``None`` for a datatype that JSON cannot express.

    Raises:
        BadRequest: An element has a type that does not fit the datatype.
        UnsoundRequest: The tensors nest too often.
    """
    if datatype not in _KINDS:
        return None
    total = 0
    level = data
    while level:
        if type(level[0]) is not list and _fits(level, datatype):
            return total + len(level)
        if len(level) == 1 and type(level[0]) is list:
            level = level[0]
            continue
        levels = levels or Levels()
        levels.take()
        lists = level
        # More elements than a document has arrays cannot all be arrays.
        if len(level) > MAX_CONTAINERS or set(map(type, level)) != _LISTS:
            lists = [each for each in level[:MAX_UNEVEN] if type(each) is list]
            single = [each for each in level[:MAX_UNEVEN] if type(each) is not list]
            if not lists or not _fits(single, datatype) or len(level) > MAX_UNEVEN:
                raise BadRequest(f"an element of {_named(place)} does not fit {datatype}")
            total += len(single)
        level = list(chain.from_iterable(lists))
    return total


def flattened(data: list[Any], levels: Levels) -> list[Any] | None:
    """Return the elements of a tensor in JSON in row-major order.

    Returns:
        The elements; ``None`` where arrays stand beside elements, as far as the first of each level
        shows.

    Raises:
        UnsoundRequest: The tensors nest too often.
    """
    level = data
    while level and type(level[0]) is list:
        if len(level) == 1:
            level = level[0]
            continue
        levels.take()
        if len(level) > MAX_CONTAINERS or set(map(type, level)) != _LISTS:
            return None
        level = list(chain.from_iterable(level))
    return level


_LISTS: Final = {list}
_KINDS: Final[dict[str, frozenset[type]]] = {
    **dict.fromkeys(("INT8", "INT16", "INT32", "INT64"), frozenset({int})),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32", "UINT64"), frozenset({int})),
    **dict.fromkeys(("FP32", "FP64"), frozenset({int, float})),
    "BOOL": frozenset({bool}),
    "BYTES": frozenset({str}),
}
"""Types of JSON values that Triton takes, by datatype."""


def _fits(part: list[Any], datatype: str) -> bool:
    """Return whether the elements of one list fit; lists do not."""
    kinds = _KINDS[datatype]
    if datatype == "BYTES":
        summed: Any = "".join
    elif len(part) > FEW and datatype != "BOOL":
        summed = sum
    else:
        return kinds.issuperset(map(type, part)) and _in_range(part, datatype)
    try:
        return type(summed(part)) in kinds
    except TypeError:
        return False


def _in_range(part: list[Any], datatype: str) -> bool:
    if datatype.startswith("UINT"):
        return bool(min(part) >= 0)
    return datatype != "INT64" or bool(max(part) < _INT64_END)


def _named(place: str | int) -> str:
    """Return a tensor's name for an error message; an integer is an input's number."""
    return place if isinstance(place, str) else f"`inputs[{place}]`"


def _bad(message: str) -> UnsoundRequest:
    return UnsoundRequest(RefusalKind.BAD_SHAPE, message)
