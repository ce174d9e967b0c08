"""Requests that are known to end a Triton, in disguise, and with bytes changed.

The recorded ones are those of ``tests/contract/fixtures/triton-2.51.0/mistakes.json``; their models
and inputs are replaced by those of `echo`, and their sizes by those of the scale.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tritonclient.grpc import service_pb2

from support.readings.cases import DEADLY, GRPC_INFER, MODEL, Case
from support.readings.grpc_bodies import field, framed, integer, varint
from support.readings.json_bodies import LENGTH, encoded, lengths, often
from support.record_mistakes import unpacked

if TYPE_CHECKING:
    import random

    from support.readings.cases import Scale

_RECORDED: Final = (
    Path(__file__).parents[2] / "contract" / "fixtures" / "triton-2.51.0" / "mistakes.json"
)
_NAMES: Final = {b'"value"': b'"numbers"', b'"x"': b'"numbers"'}
_SPACES: Final = {DEADLY.depth: 1_258_291, 0: 5000}
"""White space before a document: more than what is read of one, or little."""


@cache
def _killers() -> tuple[tuple[str, bytes, tuple[tuple[str, str], ...]], ...]:
    """Return path, body and headers of each recorded request that ended the server or a model."""
    found = []
    mistakes: list[dict[str, Any]] = json.loads(_RECORDED.read_text())["mistakes"]
    for each in mistakes:
        if "died" in each["answer"] or "not healthy" in str(each["answer"]):
            path: str = each["path"]
            if path != GRPC_INFER:
                path = re.sub("/models/[^/]+/", f"/models/{MODEL}/", path)
            headers = tuple((name.lower(), value) for name, value in each["headers"].items())
            found.append((path, unpacked(each["body"]), headers))
    return tuple(found)


def killer_case(chance: random.Random, scale: Scale, oddity: float) -> Case:
    """Return a killer in disguise; with the harmless scale it is none."""
    path, body, headers = chance.choice(_killers())
    if path == GRPC_INFER:
        return _over_grpc(chance, body, scale)
    size = next((int(value) for name, value in headers if name == LENGTH), len(body))
    document, blobs = _scaled(body[:size], scale), body[size:]
    for name, other in _NAMES.items():
        document = document.replace(name, other)
    for _ in range(chance.choice((0, 1, 1, 1, 2))):
        document = _disguised(chance, document, scale)
    framed_ = bool(blobs) or often(chance, 0.3)
    found = lengths(chance, len(document), odd=often(chance, 0.7)) if framed_ else []
    coded, coding = encoded(chance, document + blobs, odd=often(chance, 20 * oddity))
    if coding is not None:
        found.append(("content-encoding", coding))
    return Case(path, tuple(found), coded, chunked=bool(coded) and often(chance, 0.1))


def _scaled(document: bytes, scale: Scale) -> bytes:
    elements, wrap = str(scale.elements).encode(), str(scale.wrap).encode()
    made = document.replace(b"1099511627776", elements).replace(b"35184372088832", elements)
    made = made.replace(b"4611686018427387904", wrap)
    made = made.replace(b"4611686018427387905", str(scale.wrap + 1).encode())
    made = made.replace(b"288230376151711744", elements)
    for bracket in (rb"\[", rb"\]"):
        deep = bracket[1:] * scale.depth
        made = re.sub(bracket + rb"{9000,}", lambda _, deep=deep: deep, made)  # type: ignore[misc]  # a loop's value
    return made


def _disguised(chance: random.Random, document: bytes, scale: Scale) -> bytes:
    """Add what another parser may reject and Triton's accepts."""
    oddities = (
        *(b"NaN", b"Infinity", b"-Inf", b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b'"\\udc00"'),
        *(b"1e999", b"0.0000001e-400", b"18446744073709551616", b"-0", b'"\\u0000"', b"[[[[]]]]"),
    )
    spaces = _SPACES.get(scale.depth, _SPACES[0]) if often(chance, 0.2) else 1
    again = chance.choice((b'"sh\\u0061pe"', b'"shape"', b'"\\u0073hape"', b'"data"')) + b":[1]"
    odd, end = chance.choice(oddities), document.rfind(b"}")
    forms = (
        b'{"x":' + odd + b"," + document[1:],
        document[:end] + b',"x":' + odd + document[end:],
        chance.choice((b"\xef\xbb\xbf", b"\xef\xbb", b"\xef", b"\xef\xbb\xbf \n")) + document,
        document + chance.choice((b"\0", b"\0 x", b"\n\0{", b" \0\xff", b" ")),
        b" " * spaces + document,
        re.sub(rb'("shape": ?\[[^\]]*\])', lambda found: found[1] + b"," + again, document),
        document.replace(b'"shape"', b'"\\u0073hape"').replace(b'"inputs"', b'"input\\u0073"'),
        document[:end] + b',"inputs":[]' + document[end:],
    )
    return chance.choice(forms)


def _over_grpc(chance: random.Random, body: bytes, scale: Scale) -> Case:
    message = service_pb2.ModelInferRequest.FromString(body)
    message.model_name = MODEL
    sizes = {2**40: scale.elements, 2**62: scale.wrap, 2**62 + 1: scale.wrap + 1}
    for each in message.inputs:
        each.name = "text_input" if each.datatype == "BYTES" else "numbers"
        each.shape[:] = [sizes.get(size, size) for size in each.shape]
    made: bytes = message.SerializeToString()
    oddities = (
        integer(5, 1),
        integer(1, 7),
        varint(9 << 3 | 3) + varint(9 << 3 | 4),
        varint(5 << 3 | 3) + integer(3, 1) + varint(5 << 3 | 4),
        varint(5 << 3 | 1) + bytes(8),
        varint(99 << 3 | 5) + bytes(4),
        field(4, b""),
        field(4, field(2, integer(1, 1))),
        field(4, field(1, b"x") + field(2, varint(4 << 3 | 1) + bytes(8))),
        field(8, b"\xff"),
        field(7, b""),
        b"",
    )
    for _ in range(chance.choice((0, 1, 1, 2))):
        odd = chance.choice(oddities)
        made = odd + made if often(chance, 0.5) else made + odd
    headers, content = framed(chance, made, odd=often(chance, 0.3))
    return Case(GRPC_INFER, headers, content)
