"""Requests with mistakes that clients make, for a Triton that serves the project's models.

``support.record_mistakes`` records a real server's answers to them.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tritonclient.grpc import service_pb2

from support.streams import GRPC_INFER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

INFER: Final = "/v2/models/counter/infer"
VISION: Final = "/v2/models/vision/infer"
MIRROR: Final = "/v2/models/mirror/infer"
GENERATE: Final = "/v2/models/toy-llm/generate"
STREAM: Final = "/v2/models/toy-llm/generate_stream"
LENGTH: Final = "Inference-Header-Content-Length"
_DEEP: Final = "DEEP {}"
HUGE: Final = 2**40
"""Elements of a tensor for which no machine has the memory."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One request."""

    name: str
    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_grpc(self) -> bool:
        """Whether it is a gRPC call; ``body`` is then a message without its frame."""
        return self.path == GRPC_INFER

    def recorded(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the request ready for JSON; ``body`` is its body, packed."""
        return {"name": self.name, "path": self.path, "headers": dict(self.headers), "body": body}


def _deepened(text: bytes) -> bytes:
    """Put an array of arrays, as deep as said, into the place of each mark."""
    return re.sub(
        rb'"DEEP (\d+)"', lambda found: b"[" * int(found[1]) + b'"a"' + b"]" * int(found[1]), text
    )


def _value(**changes: Any) -> dict[str, Any]:
    """Return the input of `counter`, with changes; ``...`` removes a member."""
    made = {"name": "value", "datatype": "INT32", "shape": [1], "data": [1]} | changes
    return {name: value for name, value in made.items() if value is not ...}


def _infer(name: str, path: str = INFER, /, **members: Any) -> Mistake:
    base = {"inputs": [_value()], "parameters": {"sequence_id": 9, "sequence_start": True}}
    made = {key: value for key, value in (base | members).items() if value is not ...}
    return Mistake(name, path, _deepened(json.dumps(made).encode()))


def _input(name: str, /, **changes: Any) -> Mistake:
    return _infer(name, inputs=[_value(**changes)])


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


def _generate(name: str, body: object, path: str = GENERATE) -> Mistake:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Mistake(name, path, _deepened(text))


def _call(name: str, change: Callable[[Any], None]) -> Mistake:
    message = service_pb2.ModelInferRequest(model_name="counter")
    message.parameters["sequence_id"].int64_param = 9
    message.parameters["sequence_start"].bool_param = True
    tensor = message.inputs.add(name="value", datatype="INT32", shape=[1])
    tensor.contents.int_contents.append(1)
    change(message)
    return Mistake(name, GRPC_INFER, message.SerializeToString(deterministic=True))


def _field(name: str, /, **values: Any) -> Mistake:
    """Return a call whose input has other fields."""

    def change(message: Any) -> None:
        for key, value in values.items():
            if key == "shape":
                message.inputs[0].shape[:] = value
            else:
                setattr(message.inputs[0], key, value)

    return _call(name, change)


def _raw(name: str, shape: list[int], *blobs: bytes, datatype: str = "INT32") -> Mistake:
    """Return a call whose input is in ``raw_input_contents``."""

    def change(message: Any) -> None:
        message.inputs[0].ClearField("contents")
        message.inputs[0].shape[:] = shape
        message.inputs[0].datatype = datatype
        message.raw_input_contents.extend(blobs)

    return _call(name, change)


def _contents(name: str, attribute: str, values: list[Any], shape: list[int]) -> Mistake:
    def change(message: Any) -> None:
        message.inputs[0].ClearField("contents")
        message.inputs[0].shape[:] = shape
        getattr(message.inputs[0].contents, attribute).extend(values)

    return _call(name, change)


def _parameter(name: str, key: str, attribute: str, value: Any) -> Mistake:
    return _call(name, lambda message: setattr(message.parameters[key], attribute, value))


def _mirror(
    name: str,
    shape: list[int],
    data: object,
    tensor: str = "numbers",
    kind: str = "INT32",
    **more: Any,
) -> Mistake:
    """Return a request for a model whose input has any length."""
    values = {"name": tensor, "datatype": kind, "shape": shape, "data": data}
    text = json.dumps({"inputs": [values], **more}).encode()
    return Mistake(name, MIRROR, _deepened(text))


def _far(name: str, shape: list[int], size: int) -> Mistake:
    values = {
        "name": "numbers",
        "datatype": "INT32",
        "shape": shape,
        "parameters": {"binary_data_size": size},
    }
    text = json.dumps({"inputs": [values]}).encode()
    return Mistake(name, MIRROR, text + _ONE[:size], {LENGTH: str(len(text))})


def _loose(name: str, shape: list[int], kind: str, raw: bytes | None) -> Mistake:
    message = service_pb2.ModelInferRequest(model_name="mirror")
    message.inputs.add(name="texts" if kind == "BYTES" else "numbers", datatype=kind, shape=shape)
    if raw is not None:
        message.raw_input_contents.append(raw)
    return Mistake(name, GRPC_INFER, message.SerializeToString(deterministic=True))


_ONE: Final = struct.pack("<i", 1)
_IMAGE: Final = bytes(4 * 3 * 32 * 32)

MISTAKES: Final[tuple[Mistake, ...]] = (
    # The document over HTTP.
    _infer("http: nothing wrong"),
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
    _infer("http: id is a number", id=5),
    _infer("http: id is null", id=None),
    _infer("http: inputs is an object", inputs={}),
    _infer("http: inputs is null", inputs=None),
    _infer("http: inputs is empty", inputs=[]),
    _infer("http: an input is a number", inputs=[5]),
    _infer("http: parameters is an array", parameters=[]),
    _infer("http: parameters is null", parameters=None),
    _infer("http: parameters is a text", parameters="x"),
    _infer("http: outputs is an object", outputs={}),
    _infer("http: outputs is null", outputs=None),
    _infer("http: an output is a number", outputs=[5]),
    _infer("http: an output has no name", outputs=[{}]),
    _infer("http: an output's name is a number", outputs=[{"name": 5}]),
    _infer("http: unknown output", outputs=[{"name": "x"}]),
    _infer(
        "http: an output's parameters is an array", outputs=[{"name": "total", "parameters": []}]
    ),
    _infer(
        "http: an output's binary_data is a text",
        outputs=[{"name": "total", "parameters": {"binary_data": "x"}}],
    ),
    _infer(
        "http: an output's classification is a text",
        outputs=[{"name": "total", "parameters": {"classification": "x"}}],
    ),
    # Parameters of a request.
    _infer("http: sequence_id is an object", parameters={"sequence_id": {}}),
    _infer("http: sequence_id is an array", parameters={"sequence_id": []}),
    _infer("http: sequence_id is a fraction", parameters={"sequence_id": 1.5}),
    _infer("http: sequence_id is negative", parameters={"sequence_id": -1}),
    _infer("http: sequence_id is null", parameters={"sequence_id": None}),
    _infer("http: sequence_id is a boolean", parameters={"sequence_id": True}),
    _infer("http: sequence_id is above 2**64", parameters={"sequence_id": 2**65}),
    _infer("http: sequence_id is long", parameters={"sequence_id": "x" * 200}),
    _infer("http: no sequence_id", parameters=...),
    _infer("http: sequence never started", parameters={"sequence_id": 77}),
    _infer("http: sequence_start is a text", parameters={"sequence_id": 9, "sequence_start": "x"}),
    _infer("http: sequence_start is a number", parameters={"sequence_id": 9, "sequence_start": 1}),
    _infer("http: sequence_end is a text", parameters={"sequence_id": 9, "sequence_end": "x"}),
    _infer(
        "http: priority is a text",
        parameters={"sequence_id": 9, "sequence_start": True, "priority": "x"},
    ),
    _infer(
        "http: priority is negative",
        parameters={"sequence_id": 9, "sequence_start": True, "priority": -1},
    ),
    _infer(
        "http: priority is above the levels",
        parameters={"sequence_id": 9, "sequence_start": True, "priority": 99},
    ),
    _infer(
        "http: timeout is a text",
        parameters={"sequence_id": 9, "sequence_start": True, "timeout": "x"},
    ),
    _infer(
        "http: timeout is negative",
        parameters={"sequence_id": 9, "sequence_start": True, "timeout": -1},
    ),
    _infer(
        "http: binary_data_output is a text",
        parameters={"sequence_id": 9, "sequence_start": True, "binary_data_output": "x"},
    ),
    _infer(
        "http: a parameter is an object",
        parameters={"sequence_id": 9, "sequence_start": True, "x": {}},
    ),
    _infer(
        "http: a parameter is an array",
        parameters={"sequence_id": 9, "sequence_start": True, "x": []},
    ),
    _infer(
        "http: a parameter is null",
        parameters={"sequence_id": 9, "sequence_start": True, "x": None},
    ),
    _infer(
        "http: a parameter is a fraction",
        parameters={"sequence_id": 9, "sequence_start": True, "x": 1.5},
    ),
    _infer(
        "http: a parameter's name is reserved",
        parameters={"sequence_id": 9, "sequence_start": True, "triton_x": 1},
    ),
    # An input.
    _input("http: an input has no name", name=...),
    _input("http: an input's name is a number", name=5),
    _input("http: unknown input", name="x"),
    _infer("http: an input twice", inputs=[_value(), _value()]),
    _input("http: an input has no datatype", datatype=...),
    _input("http: datatype is a number", datatype=5),
    _input("http: unknown datatype", datatype="INT31"),
    _input("http: another datatype", datatype="FP32"),
    _input("http: datatype BYTES for numbers", datatype="BYTES"),
    _input("http: datatype FP16 in JSON", datatype="FP16"),
    _input("http: datatype BF16 in JSON", datatype="BF16"),
    _input("http: datatype UINT8 for a negative", datatype="UINT8", data=[-1]),
    _input("http: an input has no shape", shape=...),
    _input("http: shape is a number", shape=1),
    _input("http: shape is null", shape=None),
    _input("http: shape of texts", shape=["a"]),
    _input("http: shape of fractions", shape=[1.5]),
    _input("http: shape of null", shape=[None]),
    _input("http: shape is empty", shape=[]),
    _input("http: shape is nested", shape=[[1]]),
    _input("http: shape is negative", shape=[-1]),
    _input("http: shape is twice negative", shape=[-1, -1]),
    _input("http: shape is zero", shape=[0], data=[]),
    _input("http: shape is zero, data is not", shape=[0]),
    _input("http: shape is above the data", shape=[2]),
    _input("http: shape is below the data", shape=[1], data=[1, 2]),
    _input("http: shape of another rank", shape=[1, 1]),
    _input("http: shape is above 2**63", shape=[2**63]),
    _input("http: shape is above 2**64", shape=[2**64]),
    _input("http: shape's product is above 2**64", shape=[2**33, 2**33]),
    _input("http: shape's product wraps to 1", shape=[-1, -(2**62), 4, 2**62]),
    _input("http: an input has no data", data=...),
    _input("http: data is a number", data=5),
    _input("http: data is a text", data="x"),
    _input("http: data is an object", data={}),
    _input("http: data is null", data=None),
    _input("http: data of texts", data=["a"]),
    _input("http: data of fractions", data=[1.5]),
    _input("http: data of null", data=[None]),
    _input("http: data of booleans", data=[True]),
    _input("http: data of objects", data=[{}]),
    _input("http: data above the datatype", data=[2**31]),
    _input("http: data above 2**64", data=[2**65]),
    _input("http: data is nested", data=[[1]]),
    _input("http: data is nested unevenly", shape=[3], data=[[1], 2, [3]]),
    _input("http: data is empty", data=[]),
    _input("http: an input's parameters is an array", parameters=[]),
    _input("http: an input's parameters is null", parameters=None),
    _infer(
        "http: bytes of a fraction",
        VISION,
        inputs=[_value(name="image", datatype="FP32", shape=[1, 3, 32, 32], data=["x"] * 3072)],
        parameters=...,
    ),
    _input(
        "http: unknown shared memory",
        data=...,
        parameters={"shared_memory_region": "x", "shared_memory_byte_size": 4},
    ),
    _input(
        "http: shared memory is a number",
        data=...,
        parameters={"shared_memory_region": 5, "shared_memory_byte_size": 4},
    ),
    _input(
        "http: shared memory without a size", data=..., parameters={"shared_memory_region": "x"}
    ),
    # The binary part.
    _binary("http binary: nothing wrong", _IMAGE, len(_IMAGE)),
    _binary("http binary: size below the shape", _IMAGE, len(_IMAGE) - 4),
    _binary("http binary: size above the body", _IMAGE, len(_IMAGE) + 4),
    _binary("http binary: size and body below the shape", _IMAGE[4:], len(_IMAGE) - 4),
    _binary("http binary: size and body above the shape", _IMAGE + _ONE, len(_IMAGE) + 4),
    _binary("http binary: bytes behind the tensors", _IMAGE + _ONE, len(_IMAGE)),
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
    _generate("generate: nothing wrong", {"text_input": "a", "max_tokens": 1}),
    _generate("generate: empty body", b""),
    _generate("generate: malformed JSON", b"{"),
    _generate("generate: array", b"[]"),
    _generate("generate: empty object", {}),
    _generate("generate: text_input is a number", {"text_input": 5}),
    _generate("generate: text_input is null", {"text_input": None}),
    _generate("generate: text_input is an object", {"text_input": {}}),
    _generate("generate: text_input is an array of numbers", {"text_input": [5]}),
    _generate("generate: text_input is two texts", {"text_input": ["a", "b"]}),
    _generate("generate: text_input is an empty array", {"text_input": []}),
    _generate("generate: text_input is nested", {"text_input": [["a"]]}),
    _generate("generate: max_tokens is a text", {"text_input": "a", "max_tokens": "x"}),
    _generate("generate: max_tokens is a fraction", {"text_input": "a", "max_tokens": 1.5}),
    _generate("generate: max_tokens is negative", {"text_input": "a", "max_tokens": -1}),
    _generate("generate: max_tokens is above 2**31", {"text_input": "a", "max_tokens": 2**31}),
    _generate("generate: max_tokens is above 2**64", {"text_input": "a", "max_tokens": 2**65}),
    _generate("generate: max_tokens is null", {"text_input": "a", "max_tokens": None}),
    _generate("generate: max_tokens is an object", {"text_input": "a", "max_tokens": {}}),
    _generate("generate: stream is a text", {"text_input": "a", "stream": "x"}),
    _generate("generate: stream is a number", {"text_input": "a", "stream": 1}),
    _generate("generate: several answers", {"text_input": "a", "stream": True}),
    _generate("generate: id is a number", {"id": 5, "text_input": "a"}),
    _generate("generate: parameters is an array", {"text_input": "a", "parameters": []}),
    _generate("generate: parameters is a text", {"text_input": "a", "parameters": "x"}),
    _generate("generate: parameters is null", {"text_input": "a", "parameters": None}),
    _generate("generate: a parameter is an object", {"text_input": "a", "parameters": {"x": {}}}),
    _generate("generate: a parameter is an array", {"text_input": "a", "parameters": {"x": []}}),
    _generate("generate: a parameter is null", {"text_input": "a", "parameters": {"x": None}}),
    _generate("generate: unknown key", {"text_input": "a", "x": 1}),
    _generate("generate: unknown key is an object", {"text_input": "a", "x": {}}),
    _generate("generate: unknown key is an array", {"text_input": "a", "x": []}),
    _generate("generate: unknown key is null", {"text_input": "a", "x": None}),
    _generate("generate_stream: malformed JSON", b"{", STREAM),
    _generate("generate_stream: array", b"[]", STREAM),
    _generate("generate_stream: text_input is a number", {"text_input": 5}, STREAM),
    _generate(
        "generate_stream: max_tokens is a text", {"text_input": "a", "max_tokens": "x"}, STREAM
    ),
    # Calls over gRPC.
    _call("grpc: nothing wrong", lambda _: None),
    Mistake("grpc: malformed message", GRPC_INFER, b"\xff\xff\xff"),
    Mistake("grpc: empty message", GRPC_INFER, b""),
    _call("grpc: unknown model", lambda message: setattr(message, "model_name", "x")),
    _call("grpc: version is a text", lambda message: setattr(message, "model_version", "x")),
    _call("grpc: unknown version", lambda message: setattr(message, "model_version", "9")),
    _call("grpc: no inputs", lambda message: message.ClearField("inputs")),
    _call("grpc: an input twice", lambda message: message.inputs.append(message.inputs[0])),
    _call("grpc: unknown output", lambda message: message.outputs.add(name="x")),
    _field("grpc: unknown input", name="x"),
    _field("grpc: unknown datatype", datatype="INT31"),
    _field("grpc: no datatype", datatype=""),
    _field("grpc: another datatype", datatype="FP32"),
    _field("grpc: no shape", shape=[]),
    _field("grpc: shape is negative", shape=[-1]),
    _field("grpc: shape is zero", shape=[0]),
    _field("grpc: shape is above the contents", shape=[2]),
    _field("grpc: huge shape", shape=[HUGE]),
    _field("grpc: shape's product wraps to 1", shape=[-1, -(2**62), 4, 2**62]),
    _contents("grpc: contents above the shape", "int_contents", [1, 2], [1]),
    _contents("grpc: contents of another type", "fp32_contents", [1.0], [1]),
    _contents("grpc: no contents", "int_contents", [], [1]),
    _raw("grpc raw: nothing wrong", [1], _ONE),
    _raw("grpc raw: below the shape", [1], b"\0\0\0"),
    _raw("grpc raw: above the shape", [1], _ONE + b"\0"),
    _raw("grpc raw: huge shape", [HUGE], _ONE),
    _raw("grpc raw: more than inputs", [1], _ONE, _ONE),
    _raw("grpc raw: none", [1]),
    _raw("grpc raw: empty", [1], b""),
    _raw("grpc raw: shape is negative", [-1], _ONE),
    _raw("grpc raw: texts of a wrong length", [1], b"\xff\xff\xff\xffx", datatype="BYTES"),
    _call("grpc raw: contents too", lambda message: message.raw_input_contents.append(_ONE)),
    _parameter("grpc: sequence_id is a boolean", "sequence_id", "bool_param", True),
    _parameter("grpc: sequence_id is a fraction", "sequence_id", "double_param", 1.5),
    _parameter("grpc: sequence_id is negative", "sequence_id", "int64_param", -1),
    _parameter("grpc: sequence_id is 0", "sequence_id", "int64_param", 0),
    _parameter("grpc: sequence_id is long", "sequence_id", "string_param", "x" * 200),
    _parameter("grpc: sequence_start is a text", "sequence_start", "string_param", "x"),
    _parameter("grpc: sequence_end is a number", "sequence_end", "int64_param", 1),
    _parameter("grpc: priority is a text", "priority", "string_param", "x"),
    _parameter("grpc: priority is negative", "priority", "int64_param", -1),
    _parameter("grpc: priority is above the levels", "priority", "uint64_param", 99),
    _parameter("grpc: timeout is a text", "timeout", "string_param", "x"),
    _parameter("grpc: timeout is negative", "timeout", "int64_param", -1),
    _parameter("grpc: a parameter is a fraction", "x", "double_param", 1.5),
    _parameter("grpc: a parameter's name is reserved", "triton_x", "int64_param", 1),
    _call("grpc: a parameter has no value", lambda message: message.parameters["x"].SetInParent()),
    _call(
        "grpc: unknown shared memory",
        lambda message: setattr(
            message.inputs[0].parameters["shared_memory_region"], "string_param", "x"
        ),
    ),
    # A model that takes tensors of any length.
    _mirror("http any length: nothing wrong", [1], [1]),
    _mirror("http any length: byte size wraps to 0", [2**62], [1]),
    _mirror("http any length: byte size wraps to 4", [2**62 + 1], [1]),
    _mirror("http any length: many dimensions", [1] * 100_000, [1]),
    _mirror("http any length: data 1,000 deep", [1], _DEEP.format(1_000)),
    _mirror("http any length: data 10,000 deep", [1], _DEEP.format(10_000)),
    _mirror("http any length: data 100,000 deep", [1], _DEEP.format(100_000)),
    _infer("http: unknown member 100,000 deep", x=_DEEP.format(100_000)),
    _infer("http: a parameter 100,000 deep", parameters={"x": _DEEP.format(100_000)}),
    _infer("http: inputs 100,000 deep", inputs=_DEEP.format(100_000)),
    _generate("generate: text_input 1,000 deep", {"text_input": _DEEP.format(1_000)}),
    _generate("generate: text_input 100,000 deep", {"text_input": _DEEP.format(100_000)}),
    _generate(
        "generate: unknown key 100,000 deep", {"text_input": "a", "x": _DEEP.format(100_000)}
    ),
    _mirror("http any length: huge shape of texts", [HUGE], ["a"], "texts", "BYTES"),
    _mirror(
        "http any length: classification of everything",
        [1],
        [1],
        outputs=[{"name": "count", "parameters": {"classification": 2**62}}],
    ),
    _far("http any length: binary of a byte size that wraps to 0", [2**62], 0),
    _far("http any length: binary of a huge size", [2**58], 2**60),
    _far("http any length: binary of a huge shape", [HUGE], 4),
    _loose("grpc any length: byte size wraps to 0", [2**62], "INT32", b""),
    _loose("grpc any length: byte size wraps to 4", [2**62 + 1], "INT32", _ONE),
    _loose("grpc any length: huge shape", [HUGE], "INT32", _ONE),
    _loose("grpc any length: huge shape of texts", [HUGE], "BYTES", b"\1\0\0\0a"),
    _loose("grpc any length: huge shape of no texts", [HUGE], "BYTES", b""),
    _loose("grpc any length: texts of a wrong length", [1], "BYTES", b"\xff\xff\xff\xffa"),
    _loose("grpc any length: huge shape, no contents", [HUGE], "INT32", None),
    # Shapes that kill the server, and other mistakes beside them.
    _infer("http: huge shape, id is a number", id=5, inputs=[_value(shape=[HUGE])]),
    _infer(
        "http: huge shape, parameters is an array", parameters=[], inputs=[_value(shape=[HUGE])]
    ),
    _infer("http: huge shape, outputs is an object", outputs={}, inputs=[_value(shape=[HUGE])]),
    _infer(
        "http: huge shape, sequence_id is an object",
        parameters={"sequence_id": {}},
        inputs=[_value(shape=[HUGE])],
    ),
    _input("http: huge shape, data of texts", shape=[HUGE], data=["a"]),
    _infer("http: huge shape, another input is a number", inputs=[_value(shape=[HUGE]), 5]),
    _infer("http: huge shape among many inputs", inputs=[_value(shape=[HUGE])] + [_value()] * 1024),
    Mistake(
        "http: huge shape, then another shape",
        INFER,
        b'{"inputs": [{"name": "value", "datatype": "INT32", "shape": [1099511627776],'
        b' "shape": [1], "data": [1]}]}',
    ),
    Mistake(
        "http: huge shape, then other inputs",
        INFER,
        b'{"inputs": [{"name": "value", "datatype": "INT32", "shape": [1099511627776],'
        b' "data": [1]}], "inputs": [{"name": "value", "datatype": "INT32", "shape": [1],'
        b' "data": [1]}]}',
    ),
    _mirror("http any length: huge shape", [HUGE], [1]),
    _input("http: huge shape", shape=[HUGE]),
    _input("http: huge shape, data is nested", shape=[HUGE], data=[[1]]),
    _input("http: huge shape, data is empty", shape=[HUGE], data=[]),
    _infer(
        "http: huge shape of a fixed input",
        VISION,
        parameters=...,
        inputs=[{"name": "image", "datatype": "FP32", "shape": [HUGE, 3, 32, 32], "data": [1]}],
    ),
    _infer(
        "http: huge shape of texts",
        parameters=...,
        inputs=[{"name": "value", "datatype": "BYTES", "shape": [HUGE], "data": ["a"]}],
    ),
    _infer(
        "http: huge shape of an unknown input",
        parameters=...,
        inputs=[{"name": "x", "datatype": "INT8", "shape": [2**45], "data": [1]}],
    ),
)
