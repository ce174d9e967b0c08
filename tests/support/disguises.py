"""Deadly requests in disguise: Triton reads each as a shape of 2^40 elements and dies of it.

Each is the bytes of an HTTP/1.1 request to Triton's ``infer``, but for the request line, or a gRPC
message. A parser with rules of its own does not see the shape.
"""

from __future__ import annotations

import gzip
import zlib
from typing import Final, NamedTuple

from tritonclient.grpc import service_pb2

LENGTH: Final = "inference-header-content-length"
_SIZE: Final = 2**20 + 2**18


class Disguise(NamedTuple):
    """A deadly request over HTTP."""

    name: str
    body: bytes
    headers: tuple[str, ...] = ()


def deadly(more: str = "", key: str = "shape", model_input: str = "value") -> bytes:
    """Return JSON with a deadly shape, ``more`` members of the whole and a ``key`` that is it."""
    return (
        f'{{{more}"inputs": [{{"name": "{model_input}", "datatype": "INT32",'
        f' "{key}": [1099511627776], "data": [1]}}]}}'
    ).encode()


_PLAIN: Final = deadly()
_N: Final = len(_PLAIN)
_REPEATED: Final = deadly().replace(
    b'"shape": [1099511627776]', b'"sh\\u0061pe": [1099511627776], "shape": [1]'
)
_FULL_FLUSH: Final = zlib.compressobj(wbits=31)
_DAMAGED: Final = _FULL_FLUSH.compress(_PLAIN) + _FULL_FLUSH.flush(zlib.Z_FULL_FLUSH) + b"\xff" * 8

LISTED: Final = (
    Disguise("NaN", deadly('"x": NaN, ')),
    Disguise("Infinity", deadly('"x": [-Infinity], ')),
    Disguise("byte-order mark", b"\xef\xbb\xbf" + _PLAIN),
    Disguise("invalid UTF-8", _PLAIN.replace(b'{"i', b'{"\xff": 1, "i')),
    Disguise("overlong UTF-8", _PLAIN.replace(b'{"i', b'{"x": "\xc0\x80", "i')),
    Disguise("zero byte behind the document", _PLAIN + b"\0x"),
    Disguise("escaped second shape", _REPEATED),
    Disguise("length with a sign", _PLAIN, (f"{LENGTH}: +{_N}",)),
    Disguise("length with letters", _PLAIN, (f"{LENGTH}: {_N}abc",)),
    Disguise("length with a fraction", _PLAIN, (f"{LENGTH}: {_N}.5",)),
    Disguise("length above 2^32", _PLAIN, (f"{LENGTH}: {2**32 + _N}",)),
    Disguise("length twice", _PLAIN, (f"{LENGTH}: {_N}", f"{LENGTH}: 0")),
    Disguise("1.2 MiB of white space", b" " * _SIZE + _PLAIN),
)
"""Those that killed replicas behind Tidegate before it read by Triton's rules."""

OTHERS: Final = (
    Disguise("a part of a byte-order mark", b"\xbf" + _PLAIN),
    Disguise("NaN with a fraction", deadly('"x": NaN.5, ')),
    Disguise("more than a double", deadly('"x": 1.8e308, ')),
    Disguise("low surrogate", deadly('"x": "\\udc80", ')),
    Disguise("escaped key", deadly(key="sh\\u0061pe")),
    Disguise("second inputs", _PLAIN[:-1] + b', "inputs": []}'),
    Disguise("zeros before the length", _PLAIN, (f"{LENGTH}: {'0' * 30}{_N}",)),
    Disguise(
        "NaN and a binary tail", deadly('"x": NaN, ') + b"\xff" * 9, (f"{LENGTH}: {_N + 10}",)
    ),
    Disguise(
        "compressed white space", gzip.compress(b" " * _SIZE + _PLAIN), ("content-encoding: gzip",)
    ),
    Disguise(
        "wrong checksum", gzip.compress(_PLAIN)[:-8] + b"12345678", ("content-encoding: gzip",)
    ),
    Disguise("zlib as gzip", zlib.compress(_PLAIN), ("content-encoding: gzip",)),
    Disguise(
        "other data behind gzip", gzip.compress(_PLAIN) + b"x" * 9, ("content-encoding: gzip",)
    ),
    Disguise(
        "compressed data that ends early",
        gzip.compress(_PLAIN)[:-9],
        ("content-encoding: deflate",),
    ),
    Disguise("damage behind the document", _DAMAGED, ("content-encoding: gzip",)),
    Disguise("deep behind NaN", b'{"x": NaN, "y": ' + b"[" * 100_000),
)
"""Further ones that Triton takes."""


def grpc_disguises() -> dict[str, bytes]:
    """Return gRPC messages that end a backend's process, by name."""
    call = service_pb2.ModelInferRequest(model_name="counter", raw_input_contents=[b""])
    call.inputs.add(name="value", datatype="INT32", shape=[2**62])
    call.parameters["sequence_id"].int64_param = 5
    plain: bytes = call.SerializeToString()
    group = b"\xfb\x01\x08\x01\xfc\x01"
    tensor = call.inputs[0].SerializeToString() + group
    rest = service_pb2.ModelInferRequest(model_name="counter", raw_input_contents=[b""])
    return {
        "plain": plain,
        "group first": group + plain,
        "group in the input": rest.SerializeToString() + b"\x2a" + bytes([len(tensor)]) + tensor,
        "id of a wrong type": b"\x18\x07" + plain,
        "model of a wrong type": plain + b"\x08\x07",
        "input of a wrong type": b"\x28\x07" + plain,
        "5,000 unknown fields": plain + b"\xa0\x06\x01" * 5000,
    }
