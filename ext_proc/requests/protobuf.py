"""Protobuf's wire format, read in place: no copies, no schema, truncation allowed.

Laws:
* A length-delimited field is a pair of offsets, so a 20 MB tensor costs as much as an empty one.
* At most ``MAX_FIELDS`` fields are looked at per ``Scanner``, nested ones included.
* Data that ends inside a message whose length says more is no error: the last field is then marked
  not ``whole``. Anything else that cannot be a message is a ``BadRequest``.

Source: protobuf.dev, "Encoding". Groups (wire types 3 and 4) are refused; KServe has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.requests.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_FIELDS: Final = 4096

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

_MAX_VARINT_BYTES: Final = 10
_UINT64: Final = 2**64 - 1
_SIGN: Final = 2**63
_FIXED_WIDTH: Final = {FIXED64: 8, FIXED32: 4}


class Field(NamedTuple):
    """One field of a message."""

    number: int
    kind: int
    value: int
    """Of a varint, unsigned; 0 for the other kinds."""
    start: int
    end: int
    """Where its content lies, for all kinds but varints; ``end`` may lie beyond cut data."""
    whole: bool
    """Its content is all there."""


class Scanner:
    """Reads messages out of one buffer within one budget of fields."""

    def __init__(self, data: bytes | memoryview) -> None:
        """Read from ``data``, which is not copied."""
        self.data = memoryview(data)
        self._budget = MAX_FIELDS

    def fields(self, start: int, end: int) -> Iterator[Field]:
        """Read the fields of the message between ``start`` and ``end``.

        Args:
            start: Where the message begins.
            end: Where it ends; beyond the data where the data is cut.

        Raises:
            BadRequest: The bytes are no protobuf message, or have too many fields.
        """
        have = min(end, len(self.data))
        cut = end > have
        position = start
        while position < have:
            self._budget -= 1
            if self._budget < 0:
                raise BadRequest(f"the message has more than {MAX_FIELDS} fields; send fewer")
            tag, position = self._varint(position, have, cut=cut)
            if tag is None:
                return
            number, kind = tag >> 3, tag & 7
            if number == 0:
                raise BadRequest(f"byte {position} of the message is no protobuf field")
            if kind == VARINT:
                value, position = self._varint(position, have, cut=cut)
                if value is None:
                    return
                yield Field(number, kind, value, position, position, whole=True)
                continue
            length, position = self._length(kind, position, have, cut=cut)
            if length is None:
                return
            if position + length > end:
                raise BadRequest(f"field {number} of the message is longer than the message")
            stop = position + length
            yield Field(number, kind, 0, position, stop, whole=stop <= have)
            position = stop

    def _length(self, kind: int, position: int, end: int, *, cut: bool) -> tuple[int | None, int]:
        """Return the length of a field's content and where that begins."""
        if kind == BYTES:
            return self._varint(position, end, cut=cut)
        if kind in _FIXED_WIDTH:
            return _FIXED_WIDTH[kind], position
        raise BadRequest(f"byte {position} of the message has the unknown wire type {kind}")

    def text(self, field: Field, most: int) -> str | None:
        """Return a string field; ``None`` where it is cut or longer than ``most`` bytes.

        Raises:
            BadRequest: It is no UTF-8 text.
        """
        if field.kind != BYTES:
            raise BadRequest(f"field {field.number} of the message must be a string")
        if not field.whole or field.end - field.start > most:
            return None
        try:
            return bytes(self.data[field.start : field.end]).decode()
        except UnicodeDecodeError:
            raise BadRequest(f"field {field.number} of the message is not valid UTF-8") from None

    def varints(self, field: Field, most: int) -> list[int]:
        """Return the first ``most`` varints of a packed field, as signed 64-bit integers.

        Raises:
            BadRequest: It holds something else.
        """
        end = min(field.end, len(self.data))
        found: list[int] = []
        position = field.start
        while position < end and len(found) < most:
            value, position = self._varint(position, end, cut=not field.whole)
            if value is None:
                break
            found.append(signed(value))
        return found

    def _varint(self, position: int, end: int, *, cut: bool) -> tuple[int | None, int]:
        """Return a varint and the position behind it; ``None`` where the data ends inside it."""
        data = self.data
        value = shift = 0
        for index in range(position, min(end, position + _MAX_VARINT_BYTES)):
            byte = data[index]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004 - the continuation bit
                return value & _UINT64, index + 1
            shift += 7
        if cut and end - position < _MAX_VARINT_BYTES:
            return None, end
        raise BadRequest(f"byte {position} of the message is no protobuf varint")


def signed(value: int) -> int:
    """Read an unsigned 64-bit varint as protobuf's ``int64`` (two's complement)."""
    return value - 2 * _SIGN if value >= _SIGN else value
