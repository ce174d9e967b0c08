"""`ModelInferRequest` messages written by hand: what serializers write, and what only hands do.

Field numbers are those of Triton's ``grpc_service.proto``.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import TYPE_CHECKING, Final

from support.readings.cases import GRPC_INFER, MODEL, Case
from support.readings.json_bodies import INPUTS, WIDTHS, often

if TYPE_CHECKING:
    import random

    from support.readings.cases import Scale

VARINT, FIXED64, BYTES, START_GROUP, END_GROUP, FIXED32 = range(6)
_MODEL, _VERSION, _ID, _PARAMETERS, _INPUTS, _OUTPUTS, _RAW = range(1, 8)
_CONTENTS_OF: Final = {
    "BOOL": 1,
    "INT8": 2,
    "INT16": 2,
    "INT32": 2,
    "INT64": 3,
    "UINT8": 4,
    "UINT16": 4,
    "UINT32": 4,
    "UINT64": 5,
    "FP32": 6,
    "FP64": 7,
    "BYTES": 8,
}
_TEXTS: Final = (
    *(b"", b"a", b"7", b"007", b"tide", b"x" * 127, b"x" * 128, b"x" * 129, b"x" * 300, b"a\0b"),
    *("é潮🌊".encode(), b"\0", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xe2\x82", b"a\xffb"),
)
_NUMBERS: Final = (0, 1, 7, 2**31, 2**32 + 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)


def varint(value: int, padding: int = 0) -> bytes:
    """Write an unsigned integer, with needless bytes at its end."""
    value %= 2**64
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    if padding:
        made[-1] |= 0x80
        made += b"\x80" * (padding - 1) + b"\0"
    return bytes(made)


def field(number: int, content: bytes) -> bytes:
    """Write a length-delimited field."""
    return varint(number << 3 | BYTES) + varint(len(content)) + content


def integer(number: int, value: int) -> bytes:
    """Write a varint field."""
    return varint(number << 3 | VARINT) + varint(value)


class Hand:
    """Writes messages.

    Args:
        chance: Where all choices come from; the scale does not affect them.
        scale: The sizes that may be harmful.
        oddity: Probability of something unusual, at each place where it could be.
    """

    def __init__(self, chance: random.Random, scale: Scale, oddity: float) -> None:
        self._chance = chance
        self._scale = scale
        self._oddity = oddity

    def odd(self, factor: float = 1.0) -> bool:
        """Return whether something unusual comes here."""
        return often(self._chance, self._oddity * factor)

    def often(self, share: float) -> bool:
        """Return whether something usual comes here, in this share of cases."""
        return often(self._chance, share)

    def text(self) -> bytes:
        if self.odd(3):
            return self._chance.choice(_TEXTS)
        return self._chance.choice((b"a", b"tide", b"42", b"hello world", b""))

    def message(self, fields: list[bytes]) -> bytes:
        """Join fields; one may be there twice or be unknown, and their order may change."""
        fields = list(fields)
        if self.odd(0.5):
            fields.insert(self._chance.randrange(len(fields) + 1), self.unknown())
        if fields and self.odd(0.3):
            fields.insert(self._chance.randrange(len(fields) + 1), self._chance.choice(fields))
        if self.odd():
            self._chance.shuffle(fields)
        return b"".join(fields)

    def unknown(self) -> bytes:
        """Write a field that the schema does not have, or has with another wire type."""
        number = self._chance.choice((1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 99, 2**29 - 1, 2**29, 0))
        kind = self._chance.randrange(8)
        tag = varint(number << 3 | kind, self._chance.choice((0, 0, 0, 0, 1, 2, 5)))
        if kind == VARINT:
            padding = self._chance.choice((0, 0, 1, 3, 9, 10))
            return tag + varint(self._chance.choice(_NUMBERS) >> 7 * padding, padding)
        if kind == FIXED64:
            return tag + bytes(8)
        if kind == FIXED32:
            return tag + bytes(4)
        if kind == BYTES:
            content = self.text()
            return tag + varint(len(content), self._chance.choice((0, 0, 1, 4, 5))) + content
        inner = self.unknown() if self.often(0.2) else b""
        ends = (number, number, number, number + 1)
        if kind == START_GROUP:
            end = b"" if self.odd(2) else varint(self._chance.choice(ends) << 3 | END_GROUP)
            return tag + inner + end
        return tag

    def _string(self, number: int, content: bytes) -> bytes:
        """Write a text, perhaps twice."""
        made = field(number, content)
        if self.odd(0.7):
            other = field(number, self.text())
            made = made + other if self.often(0.5) else other + made
        return made

    # --- The request ------------------------------------------------------------------------------

    def request(self) -> bytes:
        """Write a request."""
        name = MODEL.encode()
        if self.odd(0.2):
            name += self._chance.choice((b"\0", b"\0x", b"x"))
        fields = [self._string(_MODEL, name)]
        if self.odd(0.1):
            fields.insert(0, field(_MODEL, b"x"))
        version = self._chance.choice((b"", b"", b"1", b"2"))
        if self.odd(0.5):
            odd = (b"01", b" 1", b"+2", b"1x", b"2\0", b"1.5", b"9", b"-1", b"x", b"1 ", b"\t1")
            version = self._chance.choice(odd)
        if version:
            fields.append(field(_VERSION, version))
        if self.often(0.5):
            fields.append(self._string(_ID, self.text()))
        if self.often(0.6):
            fields += self._parameters()
        raw: list[bytes] | None = [] if self.often(0.5) else None
        fields += self._inputs(raw)
        if self.often(0.2):
            fields.append(field(_OUTPUTS, self.message([field(1, b"said")])))
        if raw is not None and self.odd(0.3):
            raw.insert(self._chance.randrange(len(raw) + 1), self.text())
        fields += [field(_RAW, each) for each in raw or ()]
        made = self.message(fields)
        return _changed(self._chance, made) if self.odd(0.5) else made

    def _inputs(self, raw: list[bytes] | None) -> list[bytes]:
        """Write inputs; add their data to ``raw``, if it is given."""
        fields = []
        if not self.odd(0.3):
            known = [each for each in INPUTS if raw is not None or each[1] != "FP16"]
            chosen = self._chance.sample(known, self._chance.choice((1, 1, 1, 2, 2, 3)))
            if self.odd(0.2):
                chosen = [*chosen, chosen[0]]
            for each in chosen:
                inner = self._input(*each, raw=raw)
                if self.odd(0.1):
                    fields.append(integer(_INPUTS, 1))
                fields.append(field(_INPUTS, inner))
        return fields

    def _parameters(self) -> list[bytes]:
        made = []
        if self.often(0.7):
            made.append(self._entry(b"sequence_id", self._sequence_id()))
            for name in (b"sequence_start", b"sequence_end"):
                if self.often(0.5):
                    flag = integer(1, self._chance.choice((1, 1, 0)))
                    made.append(self._entry(name, flag if not self.odd(0.5) else self._choice()))
        for name in (b"priority", b"timeout", b"max_tokens", b"lora_name", b"temperature"):
            if self.often(0.15):
                plain = integer(2, 0 if name == b"priority" else 30_000_000)
                made.append(self._entry(name, plain if not self.odd() else self._choice()))
        if made and self.odd():
            key = self._chance.choice((b"sequence_id", b"sequence_start", b"sequence_id\0", b""))
            made.insert(self._chance.randrange(len(made) + 1), self._entry(key, self._choice()))
        return made

    def _sequence_id(self) -> bytes:
        if self.odd(2):
            return self._choice()
        if self.often(0.4):
            return field(3, self.text())
        return integer(2, self._chance.choice((1, 42, 7, 0, 2**53 + 1)))

    def _choice(self) -> bytes:
        """Write an `InferParameter`: none, one, or several of its alternatives."""
        options = (
            integer(1, self._chance.choice((0, 1, 2, 2**63))),
            integer(2, self._chance.choice(_NUMBERS)),
            field(3, self.text()),
            varint(4 << 3 | FIXED64) + struct.pack("<d", 1.5),
            integer(5, self._chance.choice(_NUMBERS)),
            self.unknown(),
        )
        count = self._chance.choice((0, 1, 1, 1, 2, 3))
        return b"".join(self._chance.choice(options) for _ in range(count))

    def _entry(self, key: bytes, value: bytes) -> bytes:
        """Write an entry of the map of parameters."""
        parts = [field(1, key), field(2, value)]
        if self.odd(0.3):
            parts.append(field(2, self._choice()))
        if self.odd(0.2):
            parts.append(field(1, self._chance.choice((b"x", key, b"sequence_id"))))
        if self.odd(0.2):
            del parts[self._chance.randrange(len(parts))]
        if self.odd(0.3):
            parts.append(self.unknown())
        if self.odd():
            self._chance.shuffle(parts)
        return field(_PARAMETERS, b"".join(parts))

    def _input(self, name: str, datatype: str, rank: int, *, raw: list[bytes] | None) -> bytes:
        shape = [self._chance.choice((1, 1, 2, 3)) for _ in range(rank)]
        if self.odd(0.3):
            shape[-1] = 0
        count = 1
        for size in shape:
            count *= size
        kind = datatype.encode()
        if self.odd(0.3):
            kind = self._chance.choice((b"INT31", b"FP32", kind + b"\0x", b"BYTES", kind.lower()))
        fields = [self._string(1, name.encode()), self._string(2, kind), *self._shape(shape)]
        if raw is not None or datatype == "FP16":
            blob = self._blob(datatype, count)
            if raw is not None and not self.odd(0.1):
                raw.append(blob)
        elif not self.odd(0.1):
            fields += [field(5, part) for part in self._contents(datatype, count)]
        if self.odd(0.2):
            key = self._chance.choice((b"shared_memory_region", b"shared_memory_region\0", b"x"))
            entry = field(1, key) + field(2, self._choice())
            fields.append(field(4, entry))
        return self.message(fields)

    def _shape(self, shape: list[int]) -> list[bytes]:
        scale = self._scale
        if self.odd(0.7):
            huge: tuple[tuple[int, ...], ...] = (
                *((scale.elements,), (scale.wrap,), (scale.wrap + 1,), (1, scale.elements)),
                *(
                    (scale.elements, 0),
                    (scale.side, scale.side),
                    *(
                        (scale.side, scale.half, 0),
                        (0, scale.side, scale.half),
                        (scale.half * scale.side, 0),
                    ),
                    *((scale.side, 0, scale.half), (0, scale.half * scale.side)),
                    (-1,),
                    (-1, -1),
                    (-(2**63),),
                ),
                *((-1, -scale.wrap, 4, scale.wrap), (2**64 - 1,)),
            )
            shape = list(self._chance.choice(huge))
        packed = b"".join(varint(size, 2 if self.odd(0.2) else 0) for size in shape)
        made = [field(3, packed)]
        kind = self._chance.randrange(12) if self.odd(3) else 12
        if kind in (0, 1):
            made = [integer(3, size) for size in shape]
        elif kind == 2:
            made = [field(3, varint(size)) for size in shape]
        elif kind == 3:
            made.append(field(3, b""))
        elif kind == 4:
            made.append(integer(3, self._chance.choice((1, scale.elements))))
        elif kind == 5:
            made.append(varint(3 << 3 | FIXED64) + struct.pack("<Q", self._chance.choice((1, 9))))
        elif kind == 6:
            made = [field(3, packed + b"\x81")]
        elif kind == 7:
            made = [integer(3, shape[0]), field(3, b"".join(varint(size) for size in shape[1:]))]
        elif kind == 8:
            made = []
        return made

    def _contents(self, datatype: str, count: int) -> list[bytes]:
        """Write `InferTensorContents`, perhaps as several messages that are merged."""
        number = _CONTENTS_OF[datatype]
        if self.odd(0.3):
            count += self._chance.choice((-1, 1))
        if self.odd(0.2):
            number = self._chance.randrange(1, 10)
        items: list[bytes]
        if datatype == "BYTES":
            items = [field(number, self.text()) for _ in range(count)]
        else:
            if datatype in ("FP32", "FP64"):
                kind = FIXED32 if datatype == "FP32" else FIXED64
                form = "<f" if datatype == "FP32" else "<d"
                values = [
                    struct.pack(form, self._chance.choice((0.5, float("nan"), 3.0)))
                    for _ in range(count)
                ]
            else:
                kind = VARINT
                numbers = _NUMBERS if self.odd() else (0, 1, 5, 100)
                values = [varint(self._chance.choice(numbers)) for _ in range(count)]
            if self.often(0.3):
                items = [varint(number << 3 | kind) + value for value in values]
            else:
                items = [field(number, b"".join(values))] if values else []
        if self.odd(0.3):
            items.insert(0, self.unknown())
        if len(items) > 1 and self.odd(3):
            return [b"".join(items[:1]), b"".join(items[1:])]
        if self.odd(0.3):
            return [b"".join(items), b""]
        return [b"".join(items)]

    def _blob(self, datatype: str, count: int) -> bytes:
        if datatype == "BYTES":
            texts = [self._chance.choice((b"", b"a", b"hello", b"\xff\0")) for _ in range(count)]
            blob = b"".join(struct.pack("<I", len(text)) + text for text in texts)
            if self.odd(0.2):
                blob += self._chance.choice((b"\0", b"\xff\xff\xff\xffx", b"\0\0\0\0"))
        else:
            blob = self._chance.randbytes(count * WIDTHS[datatype])
        if self.odd(0.3):
            blob = blob[:-1] if blob and self.often(0.5) else blob + b"\0"
        return blob


def grpc_case(chance: random.Random, scale: Scale, oddity: float) -> Case:
    """Return a call of `ModelInfer`."""
    hand = Hand(chance, scale, oddity)
    message = hand.request()
    headers, body = framed(chance, message, odd=hand.odd())
    return Case(GRPC_INFER, headers, body)


def framed(
    chance: random.Random, message: bytes, *, odd: bool
) -> tuple[tuple[tuple[str, str], ...], bytes]:
    """Return the headers and the frame of a message, compressed or not."""

    def frame(flag: int, content: bytes, length: int | None = None) -> bytes:
        return struct.pack(">BI", flag, len(content) if length is None else length) + content

    gz, zl = gzip.compress(message, 1, mtime=0), zlib.compress(message, 1)
    if not odd:
        kind = chance.randrange(16)
        if kind == 0:
            return (("grpc-encoding", "gzip"),), frame(1, gz)
        if kind == 1:
            return (("grpc-encoding", "deflate"),), frame(1, zl)
        return (), frame(0, message)
    half = len(message) // 2
    members = gzip.compress(message[:half], 1, mtime=0) + gzip.compress(message[half:], 1, mtime=0)
    variants: tuple[tuple[str | None, bytes], ...] = (
        ("gzip", frame(0, message)),
        ("gzip", frame(1, zl)),
        ("deflate", frame(1, gz)),
        ("gzip", frame(1, members)),
        ("gzip", frame(1, gz + b"x")),
        ("gzip", frame(1, gz[:-1])),
        ("gzip", frame(1, gz[:-8] + bytes(8))),
        ("gzip", frame(1, gz[: len(gz) // 2])),
        ("gzip", frame(1, message)),
        (None, frame(1, gz)),
        (None, frame(1, message)),
        ("identity", frame(1, message)),
        ("identity", frame(0, message)),
        ("br", frame(1, message)),
        ("br", frame(0, message)),
        ("GZIP", frame(1, gz)),
        ("gzip,deflate", frame(1, gz)),
        (None, frame(2, message)),
        (None, frame(0x80, message)),
        (None, frame(0, message, len(message) + 1)),
        (None, frame(0, message, max(0, len(message) - 1))),
        (None, frame(0, message) + frame(0, message)),
        (None, frame(0, message) + frame(0, b"")),
        (None, frame(0, b"") + frame(0, message)),
        (None, frame(0, message) + b"\0"),
        (None, b""),
        (None, b"\0\0"),
    )
    encoding, body = chance.choice(variants)
    return (() if encoding is None else (("grpc-encoding", encoding),)), body


def _changed(chance: random.Random, message: bytes) -> bytes:
    """Change, insert or remove bytes."""
    data = bytearray(message)
    if not data:
        return b""
    where = int(chance.random() * len(data))
    kind = chance.randrange(4)
    if kind == 0:
        # Above 15 a changed byte could make a shape large.
        data[where] = chance.randrange(16)
    elif kind == 1:
        data.insert(where, chance.randrange(16))
    elif kind == 2:
        del data[where]
    else:
        del data[where:]
    return bytes(data)
