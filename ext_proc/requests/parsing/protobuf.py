"""Reads protobuf's wire format in place: no copies, no schema, truncation allowed.

Rules:

1. A length-delimited field is a pair of offsets, so a 20 MB tensor costs as much as an empty one.
2. At most ``MAX_FIELDS`` fields are read per ``Scanner``, nested ones included.
3. Data that ends before the declared end of its message is not an error: the last field is then
   marked as not ``whole``. Any other bytes that are not a message raise ``Malformed``.
4. Protobuf skips groups and known fields of a wrong wire type, and merges messages that are there
   twice. What is read of such data here may not be what it reads: ``unsure`` then says so.

Source: protobuf.dev, "Encoding".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ext_proc.requests.parsing.budget import MAX_FIELDS, too_complex
from ext_proc.requests.parsing.errors import Malformed

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
_GROUP: Final = 3
FIXED32: Final = 5

_MAX_VARINT_BYTES: Final = 10
_UINT64: Final = 2**64 - 1
_SIGN: Final = 2**63
_MORE: Final = 0x80
"""The continuation bit: more bytes of the varint follow."""
_FIXED_WIDTH: Final = {FIXED64: 8, FIXED32: 4}


class Field(NamedTuple):
    """One field of a message."""

    number: int
    kind: int
    value: int
    """Unsigned value of a varint; 0 for the other kinds."""
    start: int
    end: int
    """Offsets of its content, for all kinds but varints; ``end`` may be beyond cut data."""
    whole: bool
    """All of its content is present."""


_new = tuple.__new__
"""Creates a ``Field`` without the overhead of a named tuple's own constructor."""


class Scanner:
    """Reads messages from one buffer within one budget of fields."""

    def __init__(self, data: bytes | memoryview, left: int = MAX_FIELDS) -> None:
        """Read from ``data``, which is not copied, at most ``left`` fields."""
        self.data = memoryview(data)
        self.unsure = False
        """Protobuf itself must say what the data means (rule 4)."""
        self.left = left
        """Fields that may still be read."""

    def fields(  # noqa: C901, PLR0912 - one loop; a function per kind of field costs a third of the speed
        self, start: int, end: int, most: int = MAX_FIELDS + 1
    ) -> list[Field]:
        """Read the fields of the message between ``start`` and ``end``.

        Args:
            start: Offset of the message.
            end: End of the message; beyond the data if the data is cut off.
            most: Stop silently after this many fields.

        Raises:
            Malformed: The bytes are not a protobuf message.
            UnsoundRequest: The scanner has read too many fields.
        """
        data = self.data
        have = min(end, len(data))
        cut = end > have
        position = start
        found: list[Field] = []
        budget = self.left
        try:
            while position < have and len(found) < most:
                budget -= 1
                if budget < 0:
                    raise too_complex(f"the message has more than {MAX_FIELDS} fields; send fewer")
                # Most tags, lengths and values are one-byte varints, which are read inline.
                first = position
                tag, position = data[position], position + 1
                if tag >= _MORE:
                    long_tag, position = self._varint(position - 1, have, cut=cut)
                    if long_tag is None:
                        break
                    tag = long_tag
                    budget -= (position - first) >> 1
                kind = tag & 7
                if tag <= 7:  # noqa: PLR2004 - a field number of 0
                    raise Malformed(f"byte {position} of the message is not a protobuf field")
                if kind in (BYTES, VARINT):
                    number = data[position] if position < have else _MORE
                    position += 1
                    if number >= _MORE:
                        long_number, position = self._varint(position - 1, have, cut=cut)
                        if long_number is None:
                            break
                        budget -= (position - first) >> 1
                        number = long_number
                    if kind == VARINT:
                        found.append(
                            _new(Field, (tag >> 3, kind, number, position, position, True))
                        )
                        continue
                elif kind == _GROUP:
                    self.unsure = True
                    break
                else:
                    number = self._width(kind, position)
                stop = position + number
                if stop > end:
                    raise Malformed(f"field {tag >> 3} of the message is longer than the message")
                found.append(_new(Field, (tag >> 3, kind, 0, position, stop, stop <= have)))
                position = stop
        finally:
            self.left = budget
        return found

    @staticmethod
    def _width(kind: int, position: int) -> int:
        width = _FIXED_WIDTH.get(kind)
        if width is None:
            raise Malformed(f"byte {position} of the message has the wrong wire type {kind}")
        return width

    def text(self, field: Field, most: int) -> str | None:
        """Return a string field; ``None`` if it is cut off or longer than ``most`` bytes.

        Raises:
            Malformed: It is not UTF-8 text.
        """
        if field.kind != BYTES:
            self.unsure = True
            return None
        if not field.whole or field.end - field.start > most:
            return None
        try:
            return str(self.data[field.start : field.end], "utf-8")
        except UnicodeDecodeError:
            raise Malformed(f"field {field.number} of the message is not valid UTF-8") from None

    def varints(self, field: Field, most: int) -> list[int]:
        """Return the first ``most`` varints of a packed field, as signed 64-bit integers.

        Raises:
            BadRequest: The field holds something else.
        """
        end = min(field.end, len(self.data))
        position = field.start
        if (packed := bytes(self.data[position : min(end, position + most)])).isascii():
            return list(packed)  # each is a byte, and there is no sign
        found: list[int] = []
        while position < end and len(found) < most:
            value, position = self._varint(position, end, cut=not field.whole)
            if value is None:
                break
            found.append(signed(value))
        return found

    def _varint(self, position: int, end: int, *, cut: bool) -> tuple[int | None, int]:
        """Return a varint and the position after it; ``None`` if the data ends inside it."""
        data = self.data
        value = shift = 0
        for index in range(position, min(end, position + _MAX_VARINT_BYTES)):
            byte = data[index]
            value |= (byte & 0x7F) << shift
            if byte < _MORE:
                return value & _UINT64, index + 1
            shift += 7
        if cut and end - position < _MAX_VARINT_BYTES:
            return None, end
        raise Malformed(f"byte {position} of the message is not a protobuf varint")


def signed(value: int) -> int:
    """Interpret an unsigned 64-bit varint as protobuf's ``int64`` (two's complement)."""
    return value - 2 * _SIGN if value >= _SIGN else value
