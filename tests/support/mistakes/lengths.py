"""Shapes and depths without bounds: for a model that takes any length, and those that kill."""

from __future__ import annotations

import json
from typing import Any, Final

from tritonclient.grpc import service_pb2

from support.mistakes.http import generate, infer, one_value, with_input
from support.mistakes.request import (
    DEEP,
    HUGE,
    INFER,
    LENGTH,
    MIRROR,
    ONE,
    VISION,
    Mistake,
    deepened,
)
from support.streams import GRPC_INFER


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
    return Mistake(name, MIRROR, deepened(text))


def _far(name: str, shape: list[int], size: int) -> Mistake:
    values = {
        "name": "numbers",
        "datatype": "INT32",
        "shape": shape,
        "parameters": {"binary_data_size": size},
    }
    text = json.dumps({"inputs": [values]}).encode()
    return Mistake(name, MIRROR, text + ONE[:size], {LENGTH: str(len(text))})


def _loose(name: str, shape: list[int], kind: str, raw: bytes | None) -> Mistake:
    message = service_pb2.ModelInferRequest(model_name="mirror")
    message.inputs.add(name="texts" if kind == "BYTES" else "numbers", datatype=kind, shape=shape)
    if raw is not None:
        message.raw_input_contents.append(raw)
    return Mistake(name, GRPC_INFER, message.SerializeToString(deterministic=True))


LENGTHS: Final[tuple[Mistake, ...]] = (
    # A model that takes tensors of any length.
    _mirror("http any length: nothing wrong", [1], [1]),
    _mirror("http any length: byte size wraps to 0", [2**62], [1]),
    _mirror("http any length: byte size wraps to 4", [2**62 + 1], [1]),
    _mirror("http any length: many dimensions", [1] * 100_000, [1]),
    _mirror("http any length: data 1,000 deep", [1], DEEP.format(1_000)),
    _mirror("http any length: data 10,000 deep", [1], DEEP.format(10_000)),
    _mirror("http any length: data 100,000 deep", [1], DEEP.format(100_000)),
    infer("http: unknown member 100,000 deep", x=DEEP.format(100_000)),
    infer("http: a parameter 100,000 deep", parameters={"x": DEEP.format(100_000)}),
    infer("http: inputs 100,000 deep", inputs=DEEP.format(100_000)),
    generate("generate: text_input 1,000 deep", {"text_input": DEEP.format(1_000)}),
    generate("generate: text_input 100,000 deep", {"text_input": DEEP.format(100_000)}),
    generate("generate: unknown key 100,000 deep", {"text_input": "a", "x": DEEP.format(100_000)}),
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
    _loose("grpc any length: byte size wraps to 4", [2**62 + 1], "INT32", ONE),
    _loose("grpc any length: huge shape", [HUGE], "INT32", ONE),
    _loose("grpc any length: huge shape of texts", [HUGE], "BYTES", b"\1\0\0\0a"),
    _loose("grpc any length: huge shape of no texts", [HUGE], "BYTES", b""),
    _loose("grpc any length: texts of a wrong length", [1], "BYTES", b"\xff\xff\xff\xffa"),
    _loose("grpc any length: huge shape, no contents", [HUGE], "INT32", None),
    # Shapes that kill the server, and other mistakes beside them.
    infer("http: huge shape, id is a number", id=5, inputs=[one_value(shape=[HUGE])]),
    infer(
        "http: huge shape, parameters is an array", parameters=[], inputs=[one_value(shape=[HUGE])]
    ),
    infer("http: huge shape, outputs is an object", outputs={}, inputs=[one_value(shape=[HUGE])]),
    infer(
        "http: huge shape, sequence_id is an object",
        parameters={"sequence_id": {}},
        inputs=[one_value(shape=[HUGE])],
    ),
    with_input("http: huge shape, data of texts", shape=[HUGE], data=["a"]),
    infer("http: huge shape, another input is a number", inputs=[one_value(shape=[HUGE]), 5]),
    infer(
        "http: huge shape among many inputs",
        inputs=[one_value(shape=[HUGE])] + [one_value()] * 1024,
    ),
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
    with_input("http: huge shape", shape=[HUGE]),
    with_input("http: huge shape, data is nested", shape=[HUGE], data=[[1]]),
    with_input("http: huge shape, data is empty", shape=[HUGE], data=[]),
    infer(
        "http: huge shape of a fixed input",
        VISION,
        parameters=...,
        inputs=[{"name": "image", "datatype": "FP32", "shape": [HUGE, 3, 32, 32], "data": [1]}],
    ),
    infer(
        "http: huge shape of texts",
        parameters=...,
        inputs=[{"name": "value", "datatype": "BYTES", "shape": [HUGE], "data": ["a"]}],
    ),
    infer(
        "http: huge shape of an unknown input",
        parameters=...,
        inputs=[{"name": "x", "datatype": "INT8", "shape": [2**45], "data": [1]}],
    ),
)
