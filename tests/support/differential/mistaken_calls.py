"""HTTP calls with mistakes that clients make: the gateway passes Triton's own words on."""

from __future__ import annotations

from typing import Any, Final

from support.differential.answers import Call
from support.differential.http import LENGTH
from support.differential.raw_calls import ABOUT, BINARY, BINARY_LENGTH, JSON, OCTETS, sent, text
from support.traffic import COUNTER, VISION, vision_body


def _input(**changes: Any) -> bytes:
    """Return an image whose input has other members; ``...`` removes one."""
    (tensor,) = vision_body()["inputs"]
    made = {name: value for name, value in {**tensor, **changes}.items() if value is not ...}
    return text({"inputs": [made]})


def _mistake(name: str, body: bytes, *lines: str, path: str = VISION) -> Call:
    return Call(f"mistake: {name}", sent(path, body, *(lines or (JSON,))))


_SIZE: Final = int(BINARY_LENGTH.partition(": ")[2])

MISTAKES: Final = (
    _mistake("unknown model", _input(), path="/v2/models/missing/infer"),
    _mistake("unknown version", _input(), path=ABOUT + "/versions/9/infer"),
    _mistake("version that is no number", _input(), path=ABOUT + "/versions/x/infer"),
    _mistake("generate of an unknown model", b"{}", path="/v2/models/missing/generate"),
    _mistake(
        "generate of an unknown version", b"{}", path="/v2/models/toy-llm/versions/9/generate"
    ),
    _mistake("empty body", b""),
    _mistake("malformed JSON", b'{"inputs": ['),
    _mistake("text behind the JSON", b"{} x"),
    _mistake("array", b"[]"),
    _mistake("number", b"1"),
    _mistake("null", b"null"),
    _mistake("empty object", b"{}"),
    _mistake("no UTF-8", b'{"id": "\xff"}'),
    _mistake("id is a number", text({**vision_body(), "id": 5})),
    _mistake("inputs is an object", text({"inputs": {}})),
    _mistake("inputs is empty", text({"inputs": []})),
    _mistake("parameters is an array", text({**vision_body(), "parameters": []})),
    _mistake("priority is a text", text({**vision_body(), "parameters": {"priority": "x"}})),
    _mistake("timeout is a text", text({**vision_body(), "parameters": {"timeout": "x"}})),
    _mistake("unknown input", _input(name="x")),
    _mistake("input without a name", text({"inputs": [{"shape": [1]}]})),
    _mistake("input twice", text({"inputs": vision_body()["inputs"] * 2})),
    _mistake("unknown output", text({**vision_body(), "outputs": [{"name": "x"}]})),
    _mistake("output without a name", text({**vision_body(), "outputs": [{}]})),
    _mistake("another datatype", _input(datatype="INT32")),
    _mistake("unknown datatype", _input(datatype="INT31")),
    _mistake("shape of another rank", _input(shape=[3, 32, 32])),
    _mistake("shape of texts", _input(shape=["a"])),
    _mistake("shape below the data", _input(shape=[1, 3, 32, 31])),
    _mistake("shape above the data", _input(shape=[1, 3, 32, 33])),
    _mistake("shape is negative", _input(shape=[-1, 3, 32, 32])),
    _mistake("batch above the largest", _input(shape=[9, 3, 32, 32], data=[0.5] * 3072 * 9)),
    _mistake("data of texts", _input(data=["a"] * 3072)),
    _mistake("no data", _input(data=[])),
    _mistake("data 2,000 deep", b'{"inputs": ' + b"[" * 2000 + b"]" * 2000 + b"}"),
    _mistake(
        "no sequence id",
        text({"inputs": [{"name": "value", "datatype": "INT32", "shape": [1], "data": [1]}]}),
        path=COUNTER,
    ),
    _mistake(
        "no shared memory",
        _input(
            data=..., parameters={"shared_memory_region": "x", "shared_memory_byte_size": 12288}
        ),
    ),
    _mistake("binary without the header", BINARY, OCTETS),
    _mistake("length above the body", BINARY, OCTETS, f"{LENGTH}: 999999"),
    _mistake("length below the JSON", BINARY, OCTETS, f"{LENGTH}: {_SIZE - 1}"),
    _mistake("length above the JSON", BINARY, OCTETS, f"{LENGTH}: {_SIZE + 1}"),
    _mistake("length is negative", BINARY, OCTETS, f"{LENGTH}: -1"),
    _mistake("length is a text", BINARY, OCTETS, f"{LENGTH}: many"),
    _mistake("tensor is too short", BINARY[:-4], OCTETS, BINARY_LENGTH),
    _mistake("tensor is too long", BINARY + b"1234", OCTETS, BINARY_LENGTH),
)
