"""Bodies that make a reader of requests work as much as it can, by the kind of work."""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import Final, NamedTuple

INFER: Final = "/v2/models/m/infer"
GENERATE: Final = "/v2/models/m/generate"
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
GRPC: Final = "/inference.GRPCInferenceService/ModelInfer"
PEEKED: Final = 128 * 1024
"""Bytes of a body that Envoy may send to a picker that peeks."""


class Costly(NamedTuple):
    """A request."""

    path: str
    body: bytes
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed
    complete: bool = True


def infer(
    data: bytes, shape: bytes = b"[1]", datatype: bytes = b"FP32", name: bytes = b"x"
) -> bytes:
    """Return the JSON of a request with one input."""
    parts = (b'{"name":"', name, b'","shape":', shape, b',"datatype":"', datatype)
    return b'{"inputs":[' + b"".join(parts) + b'","data":' + data + b"}]}"


def listed(element: bytes, size: int = PEEKED) -> bytes:
    """Return an array of so many elements that it has about ``size`` bytes."""
    return b"[" + b",".join([element] * (size // (len(element) + 1) - 64)) + b"]"


def nested(depth: int) -> bytes:
    """Return an empty array in so many arrays."""
    return b"[" * depth + b"]" * depth


def varint(value: int) -> bytes:
    """Return a varint of protobuf."""
    made = b""
    while value > 0x7F:
        made += bytes([value & 0x7F | 0x80])
        value >>= 7
    return made + bytes([value])


def field(number: int, content: bytes) -> bytes:
    """Return a field of protobuf whose content has a length."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def framed(message: bytes, *, compressed: bool = False) -> bytes:
    """Return a message of gRPC."""
    return struct.pack(">BI", compressed, len(message)) + message


def tensor(name: bytes, datatype: bytes, shape: bytes, contents: bytes = b"") -> bytes:
    """Return an input of a ``ModelInferRequest``."""
    made = field(1, name) + field(2, datatype) + field(3, shape)
    return field(5, made + (field(5, contents) if contents else b""))


def empty_blocks(count: int) -> bytes:
    """Return zlib data of blocks with a table of their own each, and without content (RFC 1951)."""
    bits: list[int] = []

    def put(value: int, width: int) -> None:
        bits.extend(value >> at & 1 for at in range(width))

    put(0, 1)  # not the last block
    put(2, 2)  # a table of its own: 257 lengths of literals, 1 of distances, 18 of lengths
    put(0, 5)
    put(0, 5)
    put(14, 4)
    for length in (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1):
        put(int(length in (1, 18)), 3)
    for zeros in (138, 117):  # the symbol 18 is 1: so many zeros
        put(1, 1)
        put(zeros - 11, 7)
    put(0, 3)  # the symbol 1 is 0: one bit for 255, for 256 and for the distance
    put(1, 1)  # 256: the end of the block
    packed = 0
    for at, bit in enumerate(bits * 8):
        packed |= bit << at
    eight = packed.to_bytes(len(bits), "little")
    return b"\x78\x9c" + eight * (count // 8)


_GZIP: Final = {"content-encoding": "gzip"}
_GRPC_GZIP: Final = {"content-type": "application/grpc", "grpc-encoding": "gzip"}
_IDS: Final = tensor(b"input_ids", b"INT32", varint(32_768), field(2, b"\x01" * 32_768))
_LONG: Final = b"\x81" + b"\x80" * 8 + b"\x00"
_MESSAGE: Final = b'{"role":"a","content":[{"a":1}]}'
_ONE: Final = b'{"name":"a","shape":[1],"datatype":"FP32","data":[1]}'

BODIES: Final[dict[str, Costly]] = {
    "125 KB of lists in 588 bytes of gzip": Costly(
        INFER, gzip.compress(infer(listed(b"[0]"))), _GZIP
    ),
    "gzip of 1 MiB of lists": Costly(INFER, gzip.compress(infer(listed(b"[]", 2**20))), _GZIP),
    "gzip of spaces": Costly(INFER, gzip.compress(infer(b"[" + b" " * 2**20 + b"]")), _GZIP),
    "gzip of zeros": Costly(INFER, gzip.compress(bytes(2**26)), _GZIP),
    "gzip of text": Costly(
        GENERATE,
        gzip.compress(b'{"text_input":"%s"}' % b" ".join(b"%d" % (n * n) for n in range(50_000))),
        _GZIP,
    ),
    "deflate of empty blocks": Costly(INFER, empty_blocks(8000), {"content-encoding": "deflate"}),
    "a 33 KB gRPC tensor": Costly(GRPC, framed(field(1, b"m") + _IDS)),
    "gRPC, gzip of a tensor": Costly(
        GRPC, framed(gzip.compress(field(1, b"m") + _IDS), compressed=True), _GRPC_GZIP
    ),
    "gRPC, integers of ten bytes": Costly(
        GRPC, framed(tensor(b"input_ids", b"INT64", b"\x01", field(3, _LONG * 12_000)))
    ),
    "gRPC, a long shape": Costly(GRPC, framed(tensor(b"x", b"INT64", b"\x01" * 16_384))),
    "gRPC, a shape of long integers": Costly(GRPC, framed(tensor(b"x", b"INT64", _LONG * 1024))),
    "gRPC, fields": Costly(GRPC, framed(b"\x10\x01" * 60_000)),
    "gRPC, unknown fields": Costly(GRPC, framed(b"\xf8\x7f\x81\x80\x80\x00" * 3072)),
    "gRPC, fields and a mistake": Costly(GRPC, framed(b"\x78\x01" * 3000 + b"\x08\x01")),
    "gRPC, inputs": Costly(GRPC, framed(tensor(b"x", b"INT64", b"\x81\x01") * 1000)),
    "gRPC, parameters": Costly(
        GRPC, framed(field(4, field(1, b"a") + field(2, b"\x08\x01")) * 255)
    ),
    "gRPC, texts": Costly(
        GRPC, framed(tensor(b"prompt", b"BYTES", b"\x01", field(8, b"a") * 40_000))
    ),
    "gRPC, raw texts": Costly(
        GRPC, framed(tensor(b"prompt", b"BYTES", varint(30_000)) + field(7, bytes(120_000)))
    ),
    "lists": Costly(INFER, infer(listed(b"[]"))),
    "objects behind NaN": Costly(INFER, infer(b"[NaN," + listed(b"{}", 5100)[1:])),
    "keys behind NaN": Costly(
        GENERATE, b'{"x":NaN,' + b",".join(b'"%d":1' % n for n in range(1270)) + b',"y":2}'
    ),
    "numbers behind NaN": Costly(INFER, infer(b"[NaN," + listed(b"1", 40_000)[1:])),
    "numbers behind NaN, cut": Costly(
        INFER, infer(b"[NaN," + listed(b"1", 40_000)[1:])[:-3], complete=False
    ),
    "a mistake behind numbers, cut": Costly(
        INFER,
        infer(b"[NaN," + listed(b"1", 39_900)[1:-1] + b"nan,1,1,1,1,1,1,1,1,1"),
        complete=False,
    ),
    "lone surrogates": Costly(GENERATE, b'{"x":NaN,"y":' + listed(b'"\\udc80"', 1020 * 9) + b"}"),
    "escapes and a lone surrogate": Costly(
        GENERATE, b'{"x":NaN,"y":"' + b"\\n" * (PEEKED // 2 - 40) + b'\\udc80","z":1}'
    ),
    "numbers and a lone surrogate": Costly(
        INFER, infer(b"[NaN," + listed(b"1", 39_000)[1:-1] + b',"\\udc80"]')
    ),
    "damaged gzip": Costly(INFER, zlib.compress(bytes(range(256)) * 60, 0)[:-4] + b"1234", _GZIP),
    "gRPC, a group and fields": Costly(GRPC, framed(b"\xfb\x01\xfc\x01" + b"\x10\x01" * 1000)),
    "gRPC, a group and inputs": Costly(
        GRPC, framed(b"\xfb\x01\xfc\x01" + tensor(b"x", b"INT64", b"\x01") * 390)
    ),
    "lists within the bound": Costly(INFER, infer(listed(b"[0,0,0]", 98_000), b"[36000]")),
    "lists in lists": Costly(INFER, infer(listed(nested(1000)))),
    "lists beside elements": Costly(INFER, infer(listed(b"[1],1,1", 98_000))),
    "many levels": Costly(
        INFER, b'{"inputs":' + listed(infer(b"[" * 90 + b"[],[]" + b"]" * 90)[11:-2]) + b"}"
    ),
    "levels of two": Costly(
        INFER,
        b'{"inputs":' + listed(infer(b"[[[[[[[[],[]],[]],[]],[]],[]],[]],[]]")[11:-2]) + b"}",
    ),
    "inputs": Costly(INFER, b'{"inputs":' + listed(_ONE, (len(_ONE) + 1) * (800 + 64)) + b"}"),
    "objects": Costly(INFER, infer(listed(b"{}"))),
    "keys": Costly(INFER, b"{" + b",".join(b'"%x":1' % n for n in range(13_000)) + b"}"),
    "integers": Costly(INFER, infer(listed(b"1"), b"[65000]")),
    "integers in 1 MiB": Costly(INFER, infer(listed(b"1", 2**20), b"[524000]")),
    "token ids": Costly(INFER, infer(listed(b"1"), b"[65000]", b"INT32", b"input_ids")),
    "nested token ids": Costly(
        INFER, infer(listed(b"[1,1,1]", 98_000), b"[36000]", b"INT32", b"input_ids")
    ),
    "texts": Costly(INFER, infer(listed(b'""'), b"[40000]", b"BYTES", b"text_input")),
    "a long shape": Costly(INFER, infer(b"[]", listed(b"1"))),
    "lists and NaN": Costly(INFER, infer(listed(b"[]", 24_000)[:-1] + b",NaN]")),
    "objects and NaN": Costly(INFER, infer(listed(b"{}", 24_000)[:-1] + b",NaN]")),
    "integers and NaN": Costly(INFER, infer(listed(b"1", 39_000)[:-1] + b",NaN]")),
    "keys and NaN": Costly(
        INFER, b'{"a":NaN,' + b",".join(b'"%x":1' % n for n in range(2400)) + b"}"
    ),
    "long integers and NaN": Costly(INFER, infer(b"[NaN," + b",".join([b"1" * 300] * 300) + b"]")),
    "repeated keys": Costly(INFER, b'{"a":' + listed(b'{"a":1,"a":2}', 100_000) + b"}"),
    "a few repeated keys": Costly(INFER, b'{"a":' + listed(b'{"a":1,"a":2}', 13_000) + b"}"),
    "cut lists": Costly(INFER, infer(listed(b"[]"))[:100_000], complete=False),
    "lists and a cut prompt": Costly(
        GENERATE, b'{"a":' + listed(b"[]")[:126_000] + b'0],"prompt":"x', complete=False
    ),
    "messages": Costly(CHAT, b'{"model":"m","messages":' + listed(_MESSAGE) + b"}"),
    "parts": Costly(
        CHAT,
        b'{"messages":' + listed(b'{"content":' + listed(b"0", 2000) + b"}", 2**20) + b"}",
    ),
    "prompts": Costly(COMPLETIONS, b'{"prompt":' + listed(b'"0"') + b"}"),
    "a batch of token ids": Costly(COMPLETIONS, b'{"prompt":' + listed(b"[0,0,0]", 98_000) + b"}"),
    "documents": Costly(
        "/v1/score", b'{"query":"a","documents":' + listed(b'{"text":["a"]}') + b"}"
    ),
    "turns": Costly("/v1/responses", b'{"input":' + listed(_MESSAGE) + b"}"),
    "turns of parts": Costly("/v1/messages", b'{"messages":' + listed(_MESSAGE) + b"}"),
    "a prompt of 1 MiB": Costly(GENERATE, b'{"prompt":"' + b"a" * 2**20 + b'"}'),
    "a prompt of escapes": Costly(GENERATE, b'{"prompt":"' + b"\\u0061" * 170_000 + b'"}'),
}
"""By name; each is at most what a picker that peeks is sent, or 1 MiB where it reads all."""
