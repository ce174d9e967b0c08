"""Raw gRPC calls: every method, and mistakes in messages and metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import grpc
import numpy as np
from grpc_health.v1 import health_pb2
from tritonclient.grpc import service_pb2 as pb

from support.differential.answers import Answer, Call, Target
from support.differential.rpc import KSERVE, call

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

INFER: Final = KSERVE + "ModelInfer"
STREAM: Final = KSERVE + "ModelStreamInfer"
_HEALTH: Final = "/grpc.health.v1.Health/"
_REFLECTION: Final = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
_LIST: Final = b"\x3a\x01*"
"""``ServerReflectionRequest`` that asks for the list of services."""


def asked(
    method: str,
    *messages: Any,
    reply: Callable[[bytes], Any] | None = None,
    edit: Callable[[Answer], Answer] = lambda answer: answer,
    **options: Any,
) -> Callable[[Target], Awaitable[Answer]]:
    """Return a gRPC call; ``options`` are those of ``call``."""
    sent = [one if isinstance(one, bytes) else one.SerializeToString() for one in messages]

    async def ask(target: Target) -> Answer:
        return edit(await call(target.grpc, method, sent, reply, **options))

    return ask


def image(model: str = "vision", **fields: Any) -> Any:
    """Return an inference of the image model."""
    made = pb.ModelInferRequest(model_name=model, **fields)
    made.inputs.add(name="image", datatype="FP32", shape=[1, 3, 32, 32])
    made.raw_input_contents.append(np.full((1, 3, 32, 32), 0.5, dtype=np.float32).tobytes())
    return made


def typed_image() -> Any:
    """Return one whose data is in its tensor."""
    made = image()
    del made.raw_input_contents[:]
    made.inputs[0].contents.fp32_contents.extend([0.5] * 3072)
    return made


def with_parameters(message: Any, **parameters: Any) -> Any:
    """Return the message with parameters."""
    for name, value in parameters.items():
        kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
        setattr(message.parameters[name], kinds[type(value)], value)
    return message


def count(value: int, **parameters: Any) -> Any:
    """Return an inference of the sequence model."""
    made = pb.ModelInferRequest(model_name="counter")
    made.inputs.add(name="value", datatype="INT32", shape=[1])
    made.inputs[0].contents.int_contents.append(value)
    return with_parameters(made, **parameters)


def prompt(text: str = "tides", tokens: int = 2, *, stream: bool = True, **fields: Any) -> Any:
    """Return an inference of the language model."""
    made = pb.ModelInferRequest(model_name="toy-llm", **fields)
    made.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    made.inputs[0].contents.bytes_contents.append(text.encode())
    made.inputs.add(name="max_tokens", datatype="INT32", shape=[1])
    made.inputs[1].contents.int_contents.append(tokens)
    made.inputs.add(name="stream", datatype="BOOL", shape=[1])
    made.inputs[2].contents.bool_contents.append(stream)
    return made


def _changed(change: Callable[[Any], None]) -> Any:
    made = image()
    change(made)
    return made


def _set(**fields: Any) -> Any:
    """Return an image whose input has other fields."""
    made = image()
    for name, value in fields.items():
        if name == "shape":
            made.inputs[0].shape[:] = value
        else:
            setattr(made.inputs[0], name, value)
    return made


def without_counts(answer: Answer) -> Answer:
    """Keep of statistics which models and versions they are of."""
    replies = [
        [(one["name"], one["version"]) for one in each["model_stats"]] for each in answer["replies"]
    ]
    return {**answer, "replies": replies}


def in_order(answer: Answer) -> Answer:
    """Order the answers to several requests by their ids: which comes first is chance."""
    replies = sorted(answer["replies"], key=lambda each: each["infer_response"]["id"])
    return {**answer, "replies": replies}


_ANSWER: Final = pb.ModelInferResponse.FromString
_STREAMED: Final = pb.ModelStreamInferResponse.FromString


def _infer(name: str, message: Any, **options: Any) -> Call:
    return Call(f"gRPC infer: {name}", asked(INFER, message, reply=_ANSWER, **options))


def _stream(name: str, messages: Sequence[Any], **options: Any) -> Call:
    return Call(f"gRPC stream: {name}", asked(STREAM, *messages, reply=_STREAMED, **options))


def _question(name: str, method: str, message: Any = b"", reply: Any = None, **more: Any) -> Call:
    read = reply.FromString if reply is not None else None
    return Call(f"gRPC: {name}", asked(KSERVE + method, message, reply=read, **more))


QUESTIONS: Final = (
    _question("server is live", "ServerLive", b"", pb.ServerLiveResponse),
    _question("server is ready", "ServerReady", b"", pb.ServerReadyResponse),
    _question("server metadata", "ServerMetadata", b"", pb.ServerMetadataResponse),
    *(
        _question(f"{what} of {name}", method, request(name=model, version=version), reply, **more)
        for what, method, request, reply, more in (
            ("readiness", "ModelReady", pb.ModelReadyRequest, pb.ModelReadyResponse, {}),
            ("metadata", "ModelMetadata", pb.ModelMetadataRequest, pb.ModelMetadataResponse, {}),
            ("config", "ModelConfig", pb.ModelConfigRequest, pb.ModelConfigResponse, {}),
            (
                "statistics",
                "ModelStatistics",
                pb.ModelStatisticsRequest,
                pb.ModelStatisticsResponse,
                {"edit": without_counts},
            ),
        )
        for name, model, version in (
            ("a model", "vision", ""),
            ("a version", "vision", "1"),
            ("the default pool's model", "toy-llm", ""),
            ("an unknown model", "missing", ""),
            ("an unknown version", "vision", "9"),
        )
    ),
    _question(
        "statistics of all models",
        "ModelStatistics",
        b"",
        pb.ModelStatisticsResponse,
        edit=without_counts,
    ),
    _question("metadata of no model", "ModelMetadata", b"", pb.ModelMetadataResponse),
    _question("malformed question", "ModelReady", b"\xff\xff", pb.ModelReadyResponse),
    _question("unknown method", "Nothing"),
    Call("gRPC: unknown service", asked("/absent.Service/Call", b"")),
    Call(
        "gRPC: health",
        asked(_HEALTH + "Check", b"", reply=health_pb2.HealthCheckResponse.FromString),
    ),
    Call(
        "gRPC: health of the service",
        asked(
            _HEALTH + "Check",
            health_pb2.HealthCheckRequest(service="inference.GRPCInferenceService"),
            reply=health_pb2.HealthCheckResponse.FromString,
        ),
    ),
    Call(
        "gRPC: health of an unknown service",
        asked(_HEALTH + "Check", health_pb2.HealthCheckRequest(service="absent")),
    ),
    Call("gRPC: watch of health", asked(_HEALTH + "Watch", b"", most=1)),
    Call("gRPC: reflection", asked(_REFLECTION, _LIST)),
    Call("gRPC: reflection v1", asked(_REFLECTION.replace("v1alpha", "v1"), _LIST)),
)

ONE_REPLICA: Final = (
    _question("repository index", "RepositoryIndex"),
    _question("load", "RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="missing")),
    _question(
        "unload", "RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="missing")
    ),
    _question("trace settings", "TraceSetting", b"", pb.TraceSettingResponse),
    _question("log settings", "LogSettings", b"", pb.LogSettingsResponse),
    _question("shared memory", "SystemSharedMemoryStatus"),
    _question("CUDA shared memory", "CudaSharedMemoryStatus"),
    _question("unregister memory", "SystemSharedMemoryUnregister"),
)


_WRONG: Final = pb.RepositoryModelLoadRequest(model_name="vision")
_WRONG.parameters["config"].string_param = "{"


def _setting(**settings: str) -> Any:
    made = pb.TraceSettingRequest()
    for name, value in settings.items():
        made.settings[name].value.append(value)
    return made


CHANGES: Final = (
    _question("load of a wrong config", "RepositoryModelLoad", _WRONG),
    _question("load of no model", "RepositoryModelLoad"),
    _question("load malformed", "RepositoryModelLoad", b"\xff\xff"),
    _question("unload of no model", "RepositoryModelUnload"),
    _question(
        "trace of an unknown model", "TraceSetting", pb.TraceSettingRequest(model_name="missing")
    ),
    _question("unknown trace setting", "TraceSetting", _setting(x="y"), pb.TraceSettingResponse),
    _question(
        "wrong trace level", "TraceSetting", _setting(trace_level="X"), pb.TraceSettingResponse
    ),
    _question("log settings malformed", "LogSettings", b"\xff\xff"),
)
"""Calls of operators beside those of ``ONE_REPLICA``, most of them wrong."""

INFERENCES: Final = (
    _infer("an image", image()),
    _infer("data in the tensor", typed_image()),
    _infer("a version", image(model_version="1")),
    _infer("an id", image(id="mine")),
    _infer("one output", _changed(lambda made: made.outputs.add(name="scores"))),
    _infer("a priority", with_parameters(image(), priority=1)),
    _infer("a timeout", with_parameters(image(), timeout=5_000_000)),
    _infer("parameters", with_parameters(image(), a="b", c=1, d=True, e=0.5)),
    _infer("a reserved parameter", with_parameters(image(), triton_a="b")),
    _infer("gzip", image(), compression=grpc.Compression.Gzip),
    _infer("deflate", image(), compression=grpc.Compression.Deflate),
    _infer("metadata", image(), metadata=(("x-request-id", "7"), ("x-bytes-bin", b"\x00\xff"))),
    _infer("a deadline", image(), deadline_s=5.0),
    _infer("a sequence", count(3, sequence_id=910, sequence_start=True, sequence_end=True)),
    _infer("a text sequence", count(3, sequence_id="b", sequence_start=True, sequence_end=True)),
    _infer("a sequence without a start", count(3, sequence_id=911)),
    _infer("no sequence id", count(3)),
    _infer("a decoupled model", prompt()),
    _infer("unknown model", image("missing")),
    _infer("no model", image("")),
    _infer("unknown version", image(model_version="9")),
    _infer("version that is no number", image(model_version="x")),
    _infer("unknown input", _set(name="x")),
    _infer("unknown output", _changed(lambda made: made.outputs.add(name="x"))),
    _infer("another datatype", _set(datatype="INT32")),
    _infer("unknown datatype", _set(datatype="INT31")),
    _infer("another rank", _set(shape=[3, 32, 32])),
    _infer("shape above the data", _set(shape=[2, 3, 32, 32])),
    _infer("shape below the data", _set(shape=[1, 3, 32, 31])),
    _infer("negative shape", _set(shape=[-1, 3, 32, 32])),
    _infer("huge shape", _set(shape=[2**40])),
    _infer("no data", _changed(lambda made: made.raw_input_contents.pop())),
    _infer("data twice", _changed(lambda made: made.raw_input_contents.append(b"1234"))),
    _infer("no inputs", pb.ModelInferRequest(model_name="vision")),
    _infer("empty message", b""),
    _infer("malformed message", b"\xff\xff\xff\xff"),
    Call("gRPC infer: no message", asked(INFER)),
    Call("gRPC infer: two messages", asked(INFER, image(), image(), reply=_ANSWER)),
    _infer(
        "unknown shared memory",
        _changed(
            lambda made: (
                made.raw_input_contents.pop(),
                setattr(made.inputs[0].parameters["shared_memory_region"], "string_param", "x"),
                setattr(made.inputs[0].parameters["shared_memory_byte_size"], "int64_param", 4),
            )
        ),
    ),
)

STREAMS: Final = (
    _stream("tokens", [prompt()]),
    _stream("one answer", [prompt(stream=False)]),
    _stream("several requests", [prompt(id="1"), prompt(tokens=1, id="2")], edit=in_order),
    _stream("an id", [prompt(id="mine")]),
    _stream("a version", [prompt(model_version="1")]),
    _stream("final answers", [with_parameters(prompt(), triton_enable_empty_final_response=True)]),
    _stream("gzip", [prompt()], compression=grpc.Compression.Gzip),
    _stream("nothing", []),
    _stream("another pool's model", [image()]),
    _stream(
        "a sequence",
        [
            count(3, sequence_id=920, sequence_start=True),
            count(4, sequence_id=920, sequence_end=True),
        ],
    ),
    _stream("unknown model", [image("missing")]),
    _stream("unknown version", [prompt(model_version="9")]),
    _stream("unknown input", [_set(name="x")]),
    _stream("malformed message", [b"\xff\xff\xff\xff"]),
    _stream("a mistake, then a good one", [image("missing"), prompt(tokens=1)]),
    _stream("errors as statuses", [image("missing")], metadata=(("triton_grpc_error", "true"),)),
)
