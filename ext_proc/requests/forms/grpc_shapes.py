"""Shapes of the inputs of a ``ModelInferRequest``.

A serializer writes a shape as one packed field. Others are as valid: a field for each dimension,
or several packed ones.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

from ext_proc.requests.parsing.budget import MAX_LONG_DIMENSIONS
from ext_proc.requests.parsing.protobuf import BYTES, VARINT, Field, Scanner, signed
from ext_proc.requests.parsing.shapes import MAX_ELEMENTS, check_room, multiply

if TYPE_CHECKING:
    from collections.abc import Sequence

INPUTS: Final = 5
"""Field of a request."""
SHAPE: Final = 3
"""Field of an input."""
PLACE: Final = "an input"
"""Name of an input in error messages."""

_SHORT: Final = 16
"""Bytes of dimensions whose product is taken at once."""
_MORE: Final = 0x80
_MOST_SHIFT: Final = 49
"""Bits before the last byte of a varint of at most eight bytes, which is positive."""


class ShapeReader:
    """Reads the shapes of one request, within one budget of dimensions."""

    __slots__ = ("_left", "_scanner")

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._left = MAX_LONG_DIMENSIONS

    def elements(self, part: Field, before: int | None) -> int | None:
        """Return the product of the dimensions in one field and of those before it.

        Args:
            part: The field.
            before: What is returned for the fields before it, 1 for none.

        Returns:
            The product of those that are not 0, negative if there are any of 0; ``None`` if
            dimensions are cut off.

        Raises:
            BadRequest: A dimension is negative, or the field has none.
            UnsoundRequest: There are too many elements or dimensions.
        """
        if before is None or not part.whole:
            return None
        if part.kind == VARINT:
            return multiply((signed(part.value),), PLACE, before)
        if part.kind != BYTES:
            return before  # protobuf skips it as an unknown field
        scanner = self._scanner
        if part.end - part.start <= _SHORT:
            packed = bytes(scanner.data[part.start : part.end])
            # Dimensions below 128 are one byte each.
            product = before * prod(packed) if packed.isascii() else _product(packed, before)
            if 0 < product <= MAX_ELEMENTS:
                return product
        sizes: Sequence[int] = scanner.varints(part, self._left + 1)
        most, self._left = self._left, max(0, self._left - len(sizes))
        return multiply(sizes, PLACE, before, most)


def _product(packed: bytes, product: int) -> int:
    """Return the product of a few dimensions; 0 if it has to be looked at again."""
    size = shift = 0
    for byte in packed:
        size |= (byte & 0x7F) << shift
        if byte < _MORE:
            product *= size
            size = shift = 0
        elif shift < _MOST_SHIFT:
            shift += 7
        else:
            return 0  # it may be negative
    return 0 if shift else product


def check_harm(scanner: Scanner, end: int) -> None:
    """Check only the shapes of a request that has other mistakes.

    A replica may overlook these, as protobuf skips fields of a wrong kind.

    Args:
        scanner: Scanner of the message, with what is left of its budget.
        end: Its end; beyond the data if that is cut off.

    Raises:
        BadRequest: It is no message.
        UnsoundRequest: A shape declares more elements than the message can have, or there are too
            many fields to tell.
    """
    shapes = ShapeReader(scanner)
    for item in scanner.fields(0, end):
        if item.number == INPUTS and item.kind == BYTES and item.whole:
            product: int | None = 1
            for part in scanner.fields(item.start, item.end):
                if part.number == SHAPE:
                    product = shapes.elements(part, product)
            if product is not None:
                check_room(product, end, PLACE)
