"""Mistakes over HTTP: the document, its members, parameters, inputs, binary data, generate."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from support.mistakes.request import (
    GENERATE,
    HUGE,
    INFER,
    LENGTH,
    ONE,
    STREAM,
    VISION,
    Mistake,
    deepened,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def one_value(**changes: Any) -> dict[str, Any]:
    """Return the input of `counter`, with changes; ``...`` removes a member."""
    made = {"name": "value", "datatype": "INT32", "shape": [1], "data": [1]} | changes
    return {name: value for name, value in made.items() if value is not ...}


def infer(name: str, path: str = INFER, /, **members: Any) -> Mistake:
    """Return a request of `counter`, with other members; ``...`` removes one."""
    base = {"inputs": [one_value()], "parameters": {"sequence_id": 9, "sequence_start": True}}
    made = {key: value for key, value in (base | members).items() if value is not ...}
    return Mistake(name, path, deepened(json.dumps(made).encode()))


def with_input(name: str, /, **changes: Any) -> Mistake:
    """Return a request of `counter` with a changed input."""
    return infer(name, inputs=[one_value(**changes)])


def _binary(
    name: str,
    blob: bytes,
    size: object,
    *,
    shape: list[int] | None = None,
    length: Callable[[int], object] = lambda size: size,
    **changes: Any,
) -> Mistake:
    """Return an image in binary; ``length`` gives the header from the JSON's size."""
    tensor = {
        "name": "image",
        "datatype": "FP32",
        "shape": shape or [1, 3, 32, 32],
        "parameters": {"binary_data_size": size},
    } | changes
    text = json.dumps({"inputs": [tensor]}).encode()
    return Mistake(name, VISION, text + blob, {LENGTH: str(length(len(text)))})


def generate(name: str, body: object, path: str = GENERATE) -> Mistake:
    """Return a request of generate; a body that is no bytes is made JSON."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Mistake(name, path, deepened(text))


_IMAGE: Final = bytes(4 * 3 * 32 * 32)

OVER_HTTP: Final[tuple[Mistake, ...]] = (
    # The document over HTTP.
    infer("http: nothing wrong"),
    Mistake("http: empty body", INFER, b""),
    Mistake("http: malformed JSON", INFER, b"{"),
    Mistake("http: text behind the JSON", INFER, b'{"inputs": []} x'),
    Mistake("http: array", INFER, b"[]"),
    Mistake("http: text", INFER, b'"x"'),
    Mistake("http: number", INFER, b"1"),
    Mistake("http: null", INFER, b"null"),
    Mistake("http: empty object", INFER, b"{}"),
    Mistake("http: invalid UTF-8", INFER, b'{"id": "\xff", "inputs": []}'),
    Mistake("http: deep nesting", INFER, b'{"inputs": ' + b"[" * 200 + b"]" * 200 + b"}"),
    Mistake("http: NaN", INFER, b'{"inputs": NaN}'),
    # Its members.
    infer("http: id is a number", id=5),
    infer("http: id is null", id=None),
    infer("http: inputs is an object", inputs={}),
    infer("http: inputs is null", inputs=None),
    infer("http: inputs is empty", inputs=[]),
    infer("http: an input is a number", inputs=[5]),
    infer("http: parameters is an array", parameters=[]),
    infer("http: parameters is null", parameters=None),
    infer("http: parameters is a text", parameters="x"),
    infer("http: outputs is an object", outputs={}),
    infer("http: outputs is null", outputs=None),
    infer("http: an output is a number", outputs=[5]),
    infer("http: an output has no name", outputs=[{}]),
    infer("http: an output's name is a number", outputs=[{"name": 5}]),
    infer("http: unknown output", outputs=[{"name": "x"}]),
    infer(
        "http: an output's parameters is an array", outputs=[{"name": "total", "parameters": []}]
    ),
    infer(
        "http: an output's binary_data is a text",
        outputs=[{"name": "total", "parameters": {"binary_data": "x"}}],
    ),
    infer(
        "http: an output's classification is a text",
        outputs=[{"name": "total", "parameters": {"classification": "x"}}],
    ),
    # Parameters of a request.
    infer("http: sequence_id is an object", parameters={"sequence_id": {}}),
    infer("http: sequence_id is an array", parameters={"sequence_id": []}),
    infer("http: sequence_id is a fraction", parameters={"sequence_id": 1.5}),
    infer("http: sequence_id is negative", parameters={"sequence_id": -1}),
    infer("http: sequence_id is null", parameters={"sequence_id": None}),
    infer("http: sequence_id is a boolean", parameters={"sequence_id": True}),
    infer("http: sequence_id is above 2**64", parameters={"sequence_id": 2**65}),
    infer("http: sequence_id is long", parameters={"sequence_id": "x" * 200}),
    infer("http: no sequence_id", parameters=...),
    infer("http: sequence never started", parameters={"sequence_id": 77}),
    infer("http: sequence_start is a text", parameters={"sequence_id": 9, "sequence_start": "x"}),
    infer("http: sequence_start is a number", parameters={"sequence_id": 9, "sequence_start": 1}),
    infer("http: sequence_end is a text", parameters={"sequence_id": 9, "sequence_end": "x"}),
    infer(
        "http: priority is a text",
        parameters={"sequence_id": 9, "sequence_start": True, "priority": "x"},
    ),
    infer(
        "http: priority is negative",
        parameters={"sequence_id": 9, "sequence_start": True, "priority": -1},
    ),
    infer(
        "http: priority is above the levels",
        parameters={"sequence_id": 9, "sequence_start": True, "priority": 99},
    ),
    infer(
        "http: timeout is a text",
        parameters={"sequence_id": 9, "sequence_start": True, "timeout": "x"},
    ),
    infer(
        "http: timeout is negative",
        parameters={"sequence_id": 9, "sequence_start": True, "timeout": -1},
    ),
    infer(
        "http: binary_data_output is a text",
        parameters={"sequence_id": 9, "sequence_start": True, "binary_data_output": "x"},
    ),
    infer(
        "http: a parameter is an object",
        parameters={"sequence_id": 9, "sequence_start": True, "x": {}},
    ),
    infer(
        "http: a parameter is an array",
        parameters={"sequence_id": 9, "sequence_start": True, "x": []},
    ),
    infer(
        "http: a parameter is null",
        parameters={"sequence_id": 9, "sequence_start": True, "x": None},
    ),
    infer(
        "http: a parameter is a fraction",
        parameters={"sequence_id": 9, "sequence_start": True, "x": 1.5},
    ),
    infer(
        "http: a parameter's name is reserved",
        parameters={"sequence_id": 9, "sequence_start": True, "triton_x": 1},
    ),
    # An input.
    with_input("http: an input has no name", name=...),
    with_input("http: an input's name is a number", name=5),
    with_input("http: unknown input", name="x"),
    infer("http: an input twice", inputs=[one_value(), one_value()]),
    with_input("http: an input has no datatype", datatype=...),
    with_input("http: datatype is a number", datatype=5),
    with_input("http: unknown datatype", datatype="INT31"),
    with_input("http: another datatype", datatype="FP32"),
    with_input("http: datatype BYTES for numbers", datatype="BYTES"),
    with_input("http: datatype FP16 in JSON", datatype="FP16"),
    with_input("http: datatype BF16 in JSON", datatype="BF16"),
    with_input("http: datatype UINT8 for a negative", datatype="UINT8", data=[-1]),
    with_input("http: an input has no shape", shape=...),
    with_input("http: shape is a number", shape=1),
    with_input("http: shape is null", shape=None),
    with_input("http: shape of texts", shape=["a"]),
    with_input("http: shape of fractions", shape=[1.5]),
    with_input("http: shape of null", shape=[None]),
    with_input("http: shape is empty", shape=[]),
    with_input("http: shape is nested", shape=[[1]]),
    with_input("http: shape is negative", shape=[-1]),
    with_input("http: shape is twice negative", shape=[-1, -1]),
    with_input("http: shape is zero", shape=[0], data=[]),
    with_input("http: shape is zero, data is not", shape=[0]),
    with_input("http: shape is above the data", shape=[2]),
    with_input("http: shape is below the data", shape=[1], data=[1, 2]),
    with_input("http: shape of another rank", shape=[1, 1]),
    with_input("http: shape is above 2**63", shape=[2**63]),
    with_input("http: shape is above 2**64", shape=[2**64]),
    with_input("http: shape's product is above 2**64", shape=[2**33, 2**33]),
    with_input("http: shape's product wraps to 1", shape=[-1, -(2**62), 4, 2**62]),
    with_input("http: an input has no data", data=...),
    with_input("http: data is a number", data=5),
    with_input("http: data is a text", data="x"),
    with_input("http: data is an object", data={}),
    with_input("http: data is null", data=None),
    with_input("http: data of texts", data=["a"]),
    with_input("http: data of fractions", data=[1.5]),
    with_input("http: data of null", data=[None]),
    with_input("http: data of booleans", data=[True]),
    with_input("http: data of objects", data=[{}]),
    with_input("http: data above the datatype", data=[2**31]),
    with_input("http: data above 2**64", data=[2**65]),
    with_input("http: data is nested", data=[[1]]),
    with_input("http: data is nested unevenly", shape=[3], data=[[1], 2, [3]]),
    with_input("http: data is empty", data=[]),
    with_input("http: an input's parameters is an array", parameters=[]),
    with_input("http: an input's parameters is null", parameters=None),
    infer(
        "http: bytes of a fraction",
        VISION,
        inputs=[one_value(name="image", datatype="FP32", shape=[1, 3, 32, 32], data=["x"] * 3072)],
        parameters=...,
    ),
    with_input(
        "http: unknown shared memory",
        data=...,
        parameters={"shared_memory_region": "x", "shared_memory_byte_size": 4},
    ),
    with_input(
        "http: shared memory is a number",
        data=...,
        parameters={"shared_memory_region": 5, "shared_memory_byte_size": 4},
    ),
    with_input(
        "http: shared memory without a size", data=..., parameters={"shared_memory_region": "x"}
    ),
    # The binary part.
    _binary("http binary: nothing wrong", _IMAGE, len(_IMAGE)),
    _binary("http binary: size below the shape", _IMAGE, len(_IMAGE) - 4),
    _binary("http binary: size above the body", _IMAGE, len(_IMAGE) + 4),
    _binary("http binary: size and body below the shape", _IMAGE[4:], len(_IMAGE) - 4),
    _binary("http binary: size and body above the shape", _IMAGE + ONE, len(_IMAGE) + 4),
    _binary("http binary: bytes behind the tensors", _IMAGE + ONE, len(_IMAGE)),
    _binary("http binary: size is a text", _IMAGE, str(len(_IMAGE))),
    _binary("http binary: size is negative", _IMAGE, -1),
    _binary("http binary: size is zero", _IMAGE, 0),
    _binary("http binary: size is a fraction", _IMAGE, 1.5),
    _binary("http binary: size is null", _IMAGE, None),
    _binary("http binary: size is above 2**64", _IMAGE, 2**64),
    _binary("http binary: with data", _IMAGE, len(_IMAGE), data=[1]),
    _binary("http binary: header below the JSON", _IMAGE, len(_IMAGE), length=lambda n: n - 4),
    _binary("http binary: header above the JSON", _IMAGE, len(_IMAGE), length=lambda n: n + 4),
    _binary("http binary: header above the body", _IMAGE, len(_IMAGE), length=lambda _: 10**9),
    _binary("http binary: header is a text", _IMAGE, len(_IMAGE), length=lambda _: "x"),
    _binary("http binary: header is negative", _IMAGE, len(_IMAGE), length=lambda _: -1),
    _binary("http binary: header is above 2**64", _IMAGE, len(_IMAGE), length=lambda _: 2**65),
    _binary("http binary: header is zero", _IMAGE, len(_IMAGE), length=lambda _: 0),
    _binary("http binary: header has a plus", _IMAGE, len(_IMAGE), length=lambda n: f"+{n}"),
    _binary("http binary: batch of zero", b"", 0, shape=[0, 3, 32, 32]),
    _binary(
        "http binary: batch above the model's", 9 * _IMAGE, 9 * len(_IMAGE), shape=[9, 3, 32, 32]
    ),
    _binary("http binary: huge shape", _IMAGE, len(_IMAGE), shape=[HUGE, 3, 32, 32]),
    _binary("http binary: shape's product wraps", _IMAGE, len(_IMAGE), shape=[2**62, 3, 32, 32]),
    Mistake("http raw: no size of a batch", VISION, _IMAGE[4:], {LENGTH: "0"}),
    # Codings of the content.
    Mistake("http: gzip that is not", INFER, b"{}", {"Content-Encoding": "gzip"}),
    Mistake("http: deflate that is not", INFER, b"{}", {"Content-Encoding": "deflate"}),
    Mistake("http: unknown coding", INFER, b"{}", {"Content-Encoding": "x"}),
    # Bodies of generate.
    generate("generate: nothing wrong", {"text_input": "a", "max_tokens": 1}),
    generate("generate: empty body", b""),
    generate("generate: malformed JSON", b"{"),
    generate("generate: array", b"[]"),
    generate("generate: empty object", {}),
    generate("generate: text_input is a number", {"text_input": 5}),
    generate("generate: text_input is null", {"text_input": None}),
    generate("generate: text_input is an object", {"text_input": {}}),
    generate("generate: text_input is an array of numbers", {"text_input": [5]}),
    generate("generate: text_input is two texts", {"text_input": ["a", "b"]}),
    generate("generate: text_input is an empty array", {"text_input": []}),
    generate("generate: text_input is nested", {"text_input": [["a"]]}),
    generate("generate: max_tokens is a text", {"text_input": "a", "max_tokens": "x"}),
    generate("generate: max_tokens is a fraction", {"text_input": "a", "max_tokens": 1.5}),
    generate("generate: max_tokens is negative", {"text_input": "a", "max_tokens": -1}),
    generate("generate: max_tokens is above 2**31", {"text_input": "a", "max_tokens": 2**31}),
    generate("generate: max_tokens is above 2**64", {"text_input": "a", "max_tokens": 2**65}),
    generate("generate: max_tokens is null", {"text_input": "a", "max_tokens": None}),
    generate("generate: max_tokens is an object", {"text_input": "a", "max_tokens": {}}),
    generate("generate: stream is a text", {"text_input": "a", "stream": "x"}),
    generate("generate: stream is a number", {"text_input": "a", "stream": 1}),
    generate("generate: several answers", {"text_input": "a", "stream": True}),
    generate("generate: id is a number", {"id": 5, "text_input": "a"}),
    generate("generate: parameters is an array", {"text_input": "a", "parameters": []}),
    generate("generate: parameters is a text", {"text_input": "a", "parameters": "x"}),
    generate("generate: parameters is null", {"text_input": "a", "parameters": None}),
    generate("generate: a parameter is an object", {"text_input": "a", "parameters": {"x": {}}}),
    generate("generate: a parameter is an array", {"text_input": "a", "parameters": {"x": []}}),
    generate("generate: a parameter is null", {"text_input": "a", "parameters": {"x": None}}),
    generate("generate: unknown key", {"text_input": "a", "x": 1}),
    generate("generate: unknown key is an object", {"text_input": "a", "x": {}}),
    generate("generate: unknown key is an array", {"text_input": "a", "x": []}),
    generate("generate: unknown key is null", {"text_input": "a", "x": None}),
    generate("generate_stream: malformed JSON", b"{", STREAM),
    generate("generate_stream: array", b"[]", STREAM),
    generate("generate_stream: text_input is a number", {"text_input": 5}, STREAM),
    generate(
        "generate_stream: max_tokens is a text", {"text_input": "a", "max_tokens": "x"}, STREAM
    ),
)
