"""Bodies of `infer` over HTTP: JSON by a grammar, with one or a few oddities, and its framing.

All that is drawn depends on the random source alone, not on the scale: the harmless and the deadly
form of a body differ in sizes only.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import TYPE_CHECKING, Final

from support.readings.cases import MODEL, Case

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from support.readings.cases import Scale

LENGTH: Final = "inference-header-content-length"
INPUTS: Final = (
    ("text_input", "BYTES", 1),
    ("texts", "BYTES", 2),
    ("max_tokens", "INT32", 1),
    ("input_ids", "INT64", 2),
    ("numbers", "INT32", 1),
    ("image", "FP32", 3),
    ("double", "FP64", 1),
    ("half", "FP16", 1),
    ("flags", "BOOL", 1),
    ("small", "INT8", 1),
    ("short", "INT16", 1),
    ("byte", "UINT8", 1),
    ("word", "UINT16", 1),
    ("count", "UINT32", 1),
    ("long", "UINT64", 1),
)
"""Inputs of the model: name, datatype, dimensions."""
WIDTHS: Final = {
    "BOOL": 1,
    "INT8": 1,
    "UINT8": 1,
    "INT16": 2,
    "UINT16": 2,
    "FP16": 2,
    "INT32": 4,
    "UINT32": 4,
    "FP32": 4,
    "INT64": 8,
    "UINT64": 8,
    "FP64": 8,
}
_NUMBERS: Final = (
    *("0", "-0", "1", "-1", "7", "1.0", "1e0", "1E+2", "0.5", "-0.0", "1e400", "-1e400", "1e-400"),
    *("NaN", "Infinity", "-Infinity", "Inf", "-Inf", "nan", "-NaN", "inf", "+1", "01", "-01"),
    *("0x10", "1.", ".5", "1e", "-", "--1", "1_0", "9" * 400, "127", "128", "255", "256", "-129"),
    *(str(2**31 - 1), str(2**31), str(2**32 - 1), str(2**32), str(2**53 + 1), str(2**63 - 1)),
    *(str(2**63), str(2**64 - 1), str(2**64), str(-(2**63)), str(-(2**63) - 1), str(2**65)),
    *("1" + "0" * 19, "0.1e1", "10e-1", "0e0", "1.5e3", "0000", "1e19", "18446744073709551616.0"),
)
_SIZES: Final = (
    *(
        b"0",
        b"-0",
        b"-1",
        b"1.0",
        b"1e0",
        b"NaN",
        b"Infinity",
        b"+1",
        b"01",
        b"0x1",
        b"null",
        b"true",
    ),
    *(str(-(2**63)).encode(), str(2**64).encode(), str(2**64 + 1).encode(), b"1e400"),
)
"""Dimensions that are harmless because they are no unsigned integers, or small ones."""
_TEXTS: Final = (
    *(b"", b"a", b"7", b"007", b"tide", b"x" * 127, b"x" * 128, b"x" * 129, b"x" * 300),
    *("é潮🌊".encode(), b"a b", b"\\u0000", b"a\\u0000b", b"\\u0061", b"\\ud83c\\udf0a", b"\\/"),
    *(b"\\ud800", b"\\udc00", b"\\ud800\\u0041", b"\\udc00\\ud800", b"\\n\\t\\r\\b\\f", b"\\q"),
    *(b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x80", b"\xc3"),
    *(b"a\0b", b"a\nb", b"a\tb", b"\x7f", b"\x01", b"\\", b"\\u12", b"\\u12G4", b"\\x41", b"'"),
    *(b"\xef\xbb\xbf", b"\xef\xbf\xbe", b"\\uFEFF", b'\\"', b"\xe2\x80\xa8"),
)
_KEYS: Final = (b"id", b"inputs", b"parameters", b"shape", b"data", b"sequence_id", b"x", b"")
_SPACES: Final = (*(b" ", b"\n", b"\t", b"\r\n ", b"   ") * 6, b"\f", b"\v", b"\xc2\xa0", b"\0")
_TAILS: Final = (
    *(b"\0", b"\0}", b'\0{"id": "b"}', b" ", b"\r\n", b"\n\0 x", b" x", b",", b"}", b"{}", b"\xff"),
    *(b"/**/", b"//", b"\x1a", b"\xef\xbb\xbf", b"\0" * 9, b" \t\n\r\0"),
)
_HEADS: Final = (
    b"\xef\xbb\xbf",
    b" ",
    b"\r\n",
    b"\xef\xbb\xbf ",
    b" \xef\xbb\xbf",
    b"\0",
    b"\xef\xbb",
)


def often(chance: random.Random, share: float) -> bool:
    """Return true in this share of cases."""
    return chance.random() < share


class Grammar:
    """Writes JSON documents.

    Args:
        chance: Where all choices come from.
        scale: The sizes that may be harmful.
        oddity: Probability of something unusual, at each place where it could be.
    """

    def __init__(self, chance: random.Random, scale: Scale, oddity: float) -> None:
        self._chance = chance
        self._scale = scale
        self._oddity = oddity
        self.blobs = b""
        """Binary data of the inputs."""
        self._binary = False

    def odd(self, factor: float = 1.0) -> bool:
        """Return whether something unusual comes here."""
        return often(self._chance, self._oddity * factor)

    def often(self, share: float) -> bool:
        """Return whether something usual comes here, in this share of cases."""
        return often(self._chance, share)

    # --- Tokens -----------------------------------------------------------------------------------

    def space(self) -> bytes:
        return self._chance.choice(_SPACES) if self.odd(0.2) else b""

    def key(self, name: bytes) -> bytes:
        """Write a key, perhaps with escapes; both are the same key."""
        if name and self.odd(0.5):
            where = self._chance.randrange(len(name))
            form = self._chance.choice((b"\\u%04x", b"\\u%04X"))
            name = name[:where] + form % name[where] + name[where + 1 :]
        elif self.odd(0.1):
            name += self._chance.choice((b"\\u0000", b" ", b"\0", b"\xff"))
        return b'"' + name + b'"' + self.space() + b":" + self.space()

    def number(self) -> bytes:
        return self._chance.choice(_NUMBERS).encode()

    def text(self) -> bytes:
        if self.odd(3):
            parts = [self._chance.choice(_TEXTS) for _ in range(self._chance.choice((1, 1, 2)))]
            return b'"' + b"".join(parts) + b'"'
        return b'"%s"' % self._chance.choice((b"a", b"tide", b"42", b"hello world", b""))

    def value(self, depth: int = 3) -> bytes:
        """Write any value."""
        kind = self._chance.randrange(9 if depth else 7)
        if kind == 0:
            return self._chance.choice((b"null", b"true", b"false", b"True", b"nul", b"None", b""))
        if kind in (1, 2):
            return self.number()
        if kind in (3, 4, 5, 6):
            return self.text()
        if kind == 7:
            return self.array([self.value(depth - 1) for _ in range(self._chance.randrange(4))])
        members = [
            (self._chance.choice(_KEYS), self.value(depth - 1))
            for _ in range(self._chance.randrange(4))
        ]
        return self.object(members)

    def nested(self) -> bytes:
        """Write arrays in arrays, as deep as the scale says."""
        depth = self._scale.depth
        return b"[" * depth + self._chance.choice((b"1", b'"a"', b"")) + b"]" * depth

    def array(self, items: list[bytes]) -> bytes:
        comma = b"," + self.space()
        tail = self._chance.choice((b",", b"")) if self.odd(0.1) else b""
        return b"[" + self.space() + comma.join(items) + tail + self.space() + b"]"

    def object(self, members: list[tuple[bytes, bytes]]) -> bytes:
        """Write an object; a member may be there twice, with another value."""
        members = list(members)
        if members and self.odd():
            name, _ = self._chance.choice(members)
            again = self._other(name)
            members.insert(self._chance.randrange(len(members) + 1), (name, again))
        if self.odd(0.5):
            members.insert(self._chance.randrange(len(members) + 1), (b"x", self.value()))
        if self.odd(0.3):
            self._chance.shuffle(members)
        written = [self.key(name) + value for name, value in members]
        comma = self.space() + b"," + self.space()
        tail = b"," if self.odd(0.1) else b""
        return b"{" + self.space() + comma.join(written) + tail + self.space() + b"}"

    def _other(self, name: bytes) -> bytes:
        """Write another value for a member that is there twice."""
        if self.odd(2) and name != b"shape":
            return self.value()
        made: dict[bytes, Callable[[], bytes]] = {
            b"shape": lambda: self._shape((1,), 1),
            b"inputs": self._inputs,
            b"parameters": self._parameters,
            b"data": lambda: b"[1]",
            b"sequence_id": self._sequence_id,
        }
        return made.get(name, self.value)()

    # --- The request ------------------------------------------------------------------------------

    def document(self) -> bytes:
        """Write a request; afterwards ``blobs`` has its binary part."""
        self._binary = self.often(0.3)
        members = []
        if self.often(0.5):
            members.append((b"id", self.text() if not self.odd() else self.value()))
        if self.often(0.6):
            members.append((b"parameters", self._parameters()))
        if not self.odd(0.3):
            members.append((b"inputs", self._inputs()))
        if self.often(0.2):
            members.append((b"outputs", self._outputs()))
        if self.often(0.4):
            members.reverse()
        document = self.object(members)
        if self.odd(0.7):
            document = self._chance.choice(_HEADS) + document
        if self.odd():
            document += self._chance.choice(_TAILS)
        return document

    def _sequence_id(self) -> bytes:
        kind = self._chance.randrange(4)
        if kind == 0 and self.odd(4):
            return self.value(1)
        if kind == 1:
            return self.text()
        if self.odd(2):
            return self.number()
        return self._chance.choice((b"1", b"42", b"7", b"0", b"9007199254740993"))

    def _parameters(self) -> bytes:
        if self.odd(0.2):
            return self.value(1)
        members: list[tuple[bytes, bytes]] = []
        if self.often(0.7):
            members.append((b"sequence_id", self._sequence_id()))
            for name in (b"sequence_start", b"sequence_end"):
                if self.often(0.5):
                    flag = self._chance.choice((b"true", b"true", b"false"))
                    members.append((name, flag if not self.odd(0.5) else self.value(0)))
        for name in (b"priority", b"timeout", b"max_tokens", b"lora_name", b"temperature"):
            if self.often(0.15):
                plain = self._chance.choice((b"0", b"1", b"30000000"))
                if name == b"priority":
                    plain = b"0"
                members.append((name, plain if not self.odd(2) else self.value(1)))
        if self.odd(0.2):
            members.append((b"binary_data_output", self._chance.choice((b"false", b"0", b'"x"'))))
        return self.object(members)

    def _outputs(self) -> bytes:
        if self.odd(0.5):
            return self.value(2)
        members = [(b"name", b'"said"' if not self.odd() else self.value(0))]
        if self.odd(3):
            options = (b"binary_data", b"classification", b"shared_memory_region")
            inner = [(self._chance.choice(options), self._chance.choice((b"false", b"0", b'"x"')))]
            members.append((b"parameters", self.object(inner)))
        return self.array([self.object(members)])

    def _inputs(self) -> bytes:
        if self.odd(0.2):
            return self.value(2)
        chosen = self._chance.sample(INPUTS, self._chance.choice((1, 1, 1, 2, 2, 3)))
        if self.odd(0.2):
            chosen = [*chosen, chosen[0]]
        items = [self._input(*each) for each in chosen]
        if self.odd(0.1):
            items.append(self.value(1))
        return self.array(items)

    def _input(self, name: str, datatype: str, rank: int) -> bytes:
        shape = tuple(self._chance.choice((1, 1, 2, 3)) for _ in range(rank))
        if self.odd(0.3):
            shape = (*shape[:-1], 0)
        count = 1
        for size in shape:
            count *= size
        shown = (
            name.encode() if not self.odd(0.1) else self._chance.choice((b"y", b"numbers\\u0000"))
        )
        kind = (
            datatype.encode()
            if not self.odd(0.2)
            else self._chance.choice(
                (b"INT31", b"FP32", b"INT32\\u0000", b"BF16", b"int32", b"BYTES")
            )
        )
        members = [
            (b"name", b'"' + shown + b'"'),
            (b"datatype", b'"' + kind + b'"'),
            (b"shape", self._shape(shape, count)),
        ]
        binary = self._binary or datatype == "FP16"
        if binary and not self.odd(0.3):
            members.append((b"parameters", self._blob(datatype, count)))
        else:
            members.append((b"data", self._data(datatype, shape)))
        if self.odd(0.1):
            region = b'{"shared_memory_region": "x", "shared_memory_byte_size": 4}'
            members.append((b"parameters", region))
        return self.object(members)

    def _shape(self, shape: tuple[int, ...], count: int) -> bytes:
        if self.odd(0.7):
            scale = self._scale
            huge = (
                *((scale.elements,), (scale.wrap,), (scale.wrap + count,), (scale.elements, 1)),
                *((1, scale.elements), (scale.elements, 0), (0, scale.elements)),
                (scale.side, scale.side),
                *(
                    (scale.side, scale.half, 0),
                    (0, scale.side, scale.half),
                    (scale.half * scale.side, 0),
                ),
                *((scale.side, 0, scale.half), (0, scale.half * scale.side)),
            )
            shape = self._chance.choice(huge)
        items = [str(size).encode() for size in shape]
        if self.odd(0.5):
            items[self._chance.randrange(len(items))] = self._chance.choice(_SIZES)
        if self.odd(0.1):
            return self._chance.choice(
                (b"1", b'"a"', b"null", b"{}", b"[[1]]", b'["1"]', b"[1,[1]]")
            )
        if self.odd(0.1):
            items = [b"1"] * self._chance.choice((0, 4, 40))
        return self.array(items)

    def _data(self, datatype: str, shape: tuple[int, ...]) -> bytes:
        if self.odd(0.1):
            return self.value(2)
        if self.odd(0.1):
            return self.nested()
        count = 1
        for size in shape:
            count *= size
        if self.odd(0.3):
            count += self._chance.choice((-1, 1))
        items = [self._element(datatype) for _ in range(max(0, count))]
        width = shape[-1]
        if len(shape) > 1 and width and self.often(0.5):
            items = [self.array(items[at : at + width]) for at in range(0, len(items), width)]
        return self.array(items)

    def _element(self, datatype: str) -> bytes:
        if self.odd(0.3):
            return self.value(1)
        if datatype == "BYTES":
            return self.text()
        if datatype == "BOOL":
            return self._chance.choice((b"true", b"false"))
        if self.odd(0.7):
            return self.number()
        if datatype.startswith("FP"):
            return self._chance.choice((b"0.5", b"1", b"-2.25e1", b"NaN", b"3"))
        return self._chance.choice((b"1", b"0", b"5", b"100"))

    def _blob(self, datatype: str, count: int) -> bytes:
        """Add binary data; write the parameters that tell its size."""
        if datatype == "BYTES":
            texts = [self._chance.choice((b"", b"a", b"hello", b"\xff\0")) for _ in range(count)]
            blob = b"".join(struct.pack("<I", len(text)) + text for text in texts)
        else:
            blob = self._chance.randbytes(count * WIDTHS[datatype])
        if self.odd(0.3):
            blob = blob[:-1] if blob and self.often(0.5) else blob + b"\0"
        self.blobs += blob
        size = str(len(blob)).encode()
        if self.odd(0.5):
            size = self._chance.choice((self.number(), size + b".0", b'"%s"' % size, b"0"))
        return self.object([(b"binary_data_size", size)])


def json_case(chance: random.Random, scale: Scale, oddity: float) -> Case:
    """Return a request of `infer` over HTTP."""
    grammar = Grammar(chance, scale, oddity)
    document = grammar.document()
    if grammar.odd(0.3):
        document = _changed(chance, document)
    headers: list[tuple[str, str]] = [("content-type", "application/json")]
    framed = bool(grammar.blobs) or often(chance, 0.1)
    if grammar.odd(0.3):
        framed = not framed
    headers += lengths(chance, len(document), odd=grammar.odd(6)) if framed else ()
    body = document + grammar.blobs
    if grammar.odd(0.1):
        body += chance.choice((b"\0", b"x", b" " * 9))
    coded, encoding = encoded(chance, body, odd=grammar.odd(2))
    headers += [("content-encoding", encoding)] if encoding is not None else []
    version = chance.choice(("", "", "/versions/1", "/versions/2"))
    if grammar.odd(0.2):
        version = chance.choice(("/versions/01", "/versions/9", "/versions/000000000000000000001"))
    path = f"/v2/models/{MODEL}{version}/infer"
    chunked = bool(coded) and often(chance, 0.1)
    return Case(path, tuple(headers), coded, chunked)


def generate_case(chance: random.Random, scale: Scale, oddity: float) -> Case:
    """Return a request of `generate`."""
    grammar = Grammar(chance, scale, oddity)
    members = [(b"text_input", grammar.nested() if grammar.odd(0.3) else grammar.text())]
    if often(chance, 0.5):
        members.append((b"id", grammar.text() if not grammar.odd() else grammar.value()))
    if often(chance, 0.5):
        members.append((b"max_tokens", b"5" if not grammar.odd() else grammar.value(1)))
    if often(chance, 0.3):
        members.append((b"parameters", grammar.object([(b"sequence_id", grammar.value(1))])))
    document = grammar.object(members)
    if grammar.odd():
        document = chance.choice(_HEADS) + document
    if grammar.odd():
        document += chance.choice(_TAILS)
    version = chance.choice(("", "/versions/1", "/versions/2"))
    return Case(f"/v2/models/{MODEL}{version}/generate", (), document)


def lengths(chance: random.Random, size: int, *, odd: bool) -> list[tuple[str, str]]:
    """Return the header that tells where the JSON ends, or variants of it."""
    plain = str(size)
    if not odd:
        return [(LENGTH, plain)]
    variants = (
        *(f"+{plain}", f"{plain}abc", f"{plain}.5", f"{plain} 9", f"0{plain}", f"00000000{plain}"),
        *(str(2**32 + size), str(size - 2**32), str(2**64 + size), f"-{plain}", "", "abc", "0"),
        *("-0", f"{plain}e2", f"0x{size:x}", str(size + 1), str(size - 1), f"{plain},7", "+-1"),
        *(f"\t{plain}", f"{plain}\t", f"{plain};x", "2147483648", str(2**31 + size), f"--{plain}"),
        *(f"\x0b{plain}", f"+ {plain}", f"{plain}\x00", f"{plain}\xb2", "9" * 19, "9" * 30),
    )
    found = [(LENGTH, chance.choice(variants))]
    if often(chance, 0.3):
        found.insert(chance.randrange(2), (LENGTH, chance.choice((plain, "7"))))
    return found


def encoded(chance: random.Random, body: bytes, *, odd: bool) -> tuple[bytes, str | None]:
    """Return the body in a content coding, and the coding's name as the header tells it."""
    if not odd:
        kind = chance.randrange(20)
        if kind == 0:
            return gzip.compress(body, 1, mtime=0), "gzip"
        if kind == 1:
            return zlib.compress(body, 1), "deflate"
        return body, "identity" if kind == 2 else None
    raw = zlib.compressobj(1, zlib.DEFLATED, -15)
    gz, zl = gzip.compress(body, 1, mtime=0), zlib.compress(body, 1)
    half = len(body) // 2
    variants: tuple[tuple[bytes, str], ...] = (
        (gz, "deflate"),
        (zl, "gzip"),
        (raw.compress(body) + raw.flush(), "deflate"),
        (gz, "GZIP"),
        (gz, "x-gzip"),
        (gz, "gzip, identity"),
        (gz, "gzip;q=1"),
        (gz + b"x", "gzip"),
        (gz + gz, "gzip"),
        (gzip.compress(body[:half], 1, mtime=0) + gzip.compress(body[half:], 1, mtime=0), "gzip"),
        (gz[:-1], "gzip"),
        (gz[:-8], "gzip"),
        (gz[:-8] + b"\0" * 8, "gzip"),
        (zl[:-4] + b"\0" * 4, "deflate"),
        (zl[:-4], "deflate"),
        (gz[: len(gz) // 2], "gzip"),
        (body, "gzip"),
        (body, "deflate"),
        (body, "br"),
        (body, ""),
        (body, "Identity"),
        (body, "identity, gzip"),
        (gzip.compress(gz, 1, mtime=0), "gzip"),
    )
    return chance.choice(variants)


def _changed(chance: random.Random, text: bytes) -> bytes:
    """Change, insert or remove a byte, or repeat or remove a run."""
    data = bytearray(text)
    if not data:
        return b""
    where = int(chance.random() * len(data))
    kind = chance.randrange(5)
    if kind == 0:
        data[where] = chance.choice(b'\0 "\\,:[]{}0-.eEN\xff\xc3\x80')
    elif kind == 1:
        data.insert(where, chance.choice(b'\0 "\\,:[]{}0-.eEN\xff\xc3\x80'))
    elif kind == 2:
        del data[where]
    elif kind == 3:
        data[where:where] = data[where : where + 9]
    else:
        del data[where : where + chance.randrange(1, 40)]
    return bytes(data)
