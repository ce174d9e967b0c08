"""Mistakes over gRPC: the message, its input, raw contents, parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tritonclient.grpc import service_pb2

from support.mistakes.request import HUGE, ONE, Mistake
from support.streams import GRPC_INFER

if TYPE_CHECKING:
    from collections.abc import Callable


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


OVER_GRPC: Final[tuple[Mistake, ...]] = (
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
    _raw("grpc raw: nothing wrong", [1], ONE),
    _raw("grpc raw: below the shape", [1], b"\0\0\0"),
    _raw("grpc raw: above the shape", [1], ONE + b"\0"),
    _raw("grpc raw: huge shape", [HUGE], ONE),
    _raw("grpc raw: more than inputs", [1], ONE, ONE),
    _raw("grpc raw: none", [1]),
    _raw("grpc raw: empty", [1], b""),
    _raw("grpc raw: shape is negative", [-1], ONE),
    _raw("grpc raw: texts of a wrong length", [1], b"\xff\xff\xff\xffx", datatype="BYTES"),
    _call("grpc raw: contents too", lambda message: message.raw_input_contents.append(ONE)),
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
)
