"""The part of KServe's gRPC service that Envoy needs to find a model's name in a message.

Field numbers and methods follow triton-inference-server/common: ``protobuf/grpc_service.proto``.
All other fields are left out: unknown fields are skipped.
"""

from __future__ import annotations

from typing import Final

from google.protobuf import descriptor_pb2

PACKAGE: Final = "inference"
SERVICE: Final = "GRPCInferenceService"
NAME_FIELDS: Final = {
    "ModelInfer": "model_name",
    "ModelStreamInfer": "model_name",
    "ModelReady": "name",
    "ModelMetadata": "name",
    "ModelConfig": "name",
    "ModelStatistics": "name",
}
"""Method -> field 1 of its request, which names the model."""

_STREAMING: Final = frozenset({"ModelStreamInfer"})
_STRING: Final = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
_OPTIONAL: Final = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL


def descriptor_set() -> bytes:
    """Return the serialized ``FileDescriptorSet``."""
    file = descriptor_pb2.FileDescriptorProto(
        name="inference.proto", package=PACKAGE, syntax="proto3"
    )
    file.message_type.add(name="Answer")
    service = file.service.add(name=SERVICE)
    for method, field in NAME_FIELDS.items():
        request = file.message_type.add(name=f"{method}Request")
        request.field.add(name=field, number=1, type=_STRING, label=_OPTIONAL, json_name=field)
        service.method.add(
            name=method,
            input_type=f".{PACKAGE}.{method}Request",
            output_type=f".{PACKAGE}.Answer",
            client_streaming=method in _STREAMING,
            server_streaming=method in _STREAMING,
        )
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    return files.SerializeToString(deterministic=True)
