"""HTTP filters by which Envoy itself chooses a pool by the model that a body names.

``xds_server.fleet.rules.bodies`` says for which requests. Rules:

1. All filters are disabled in the listener, and a route enables those that it needs: a request of
   any other route creates none of them. Every listener has them, whether pools share a form or not,
   so that it does not change, and drain connections, when pools come and go.
2. Ahead of ext_proc stand the filters that read *before* the picker is asked, behind it those that
   read *without* a pick. The latter do nothing for a request that has a pick, or a model already.
3. A filter of Envoy's own puts the model into dynamic metadata. A script behind it copies it to a
   header, which clients cannot set, and clears the cached route: routes match by the header.
4. Envoy holds at most ``request_body_buffer_limit`` of the route for this. JSON above it gets 413,
   a gRPC message above it, or a compressed one, a refusal in our words.

Sources: ``json_to_metadata/v3``, ``grpc_field_extraction/v3`` and ``lua/v3`` of Envoy's
``extensions/filters/http``.

Field numbers and methods of the descriptors follow triton-inference-server/common:
``protobuf/grpc_service.proto``. All other fields are left out: unknown fields are skipped.
"""

from __future__ import annotations

from typing import Any, Final

from envoy.extensions.filters.http.grpc_field_extraction.v3 import config_pb2
from envoy.extensions.filters.http.json_to_metadata.v3 import json_to_metadata_pb2
from envoy.extensions.filters.http.lua.v3 import lua_pb2
from google.protobuf import descriptor_pb2

from tidegate_api.names import ASKED_HEADER, CONTROL_MODEL_HEADER, DESTINATION_HEADER
from xds_server.resources.filters.held_uploads import time_header
from xds_server.resources.filters.scripts import MARK, NAMESPACE, ROUTE_BEFORE, ROUTE_WITHOUT
from xds_server.resources.filters.wrapped import Skip, enable, wrapped

_JSON_BEFORE: Final = "tidegate.before.json"
_GRPC_BEFORE: Final = "tidegate.before.grpc"
_ROUTE_BEFORE: Final = "tidegate.before.route"
_ASKED_BEFORE: Final = "tidegate.before.asked"
_MARK: Final = "tidegate.without.mark"
_JSON_WITHOUT: Final = "tidegate.without.json"
_GRPC_WITHOUT: Final = "tidegate.without.grpc"
_ROUTE_WITHOUT: Final = "tidegate.without.route"

CODINGS: Final = "(gzip|deflate|snappy|zstd|br)"
"""Values of ``grpc-encoding`` with which messages may be compressed."""

_COMPRESSED: Final = Skip("grpc-encoding", CODINGS)
_HAS_PICK: Final = Skip(DESTINATION_HEADER)
_PICKED: Final = (_HAS_PICK, Skip(CONTROL_MODEL_HEADER))

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


def before_picker() -> list[bytes]:
    """Return the serialized ``HttpFilter`` messages ahead of ext_proc."""
    return [
        wrapped(_JSON_BEFORE, _json(), _PICKED),
        wrapped(_GRPC_BEFORE, _grpc(), _PICKED),
        wrapped(_ROUTE_BEFORE, _lua(ROUTE_BEFORE), _PICKED),
        wrapped(_ASKED_BEFORE, time_header(ASKED_HEADER), (_HAS_PICK,)),
    ]


def without_pick() -> list[bytes]:
    """Return the serialized ``HttpFilter`` messages behind ext_proc."""
    return [
        wrapped(_MARK, _lua(MARK), _PICKED),
        wrapped(_JSON_WITHOUT, _json(), _PICKED),
        wrapped(_GRPC_WITHOUT, _grpc(), _PICKED),
        wrapped(_ROUTE_WITHOUT, _lua(ROUTE_WITHOUT), _PICKED),
    ]


def read_before(route: Any, *, grpc: bool, leave_compressed: bool = False) -> None:
    """Let a route read the model before the picker is asked.

    Args:
        route: The route on which the request arrives.
        grpc: Whether its requests are gRPC calls, and not JSON.
        leave_compressed: Whether gRPC calls that may be compressed are left to the picker; they
            are refused otherwise.
    """
    skips = (_COMPRESSED,) if leave_compressed else ()
    enable(route, (_GRPC_BEFORE if grpc else _JSON_BEFORE, _ROUTE_BEFORE), (*_PICKED, *skips))
    enable(route, (_ASKED_BEFORE,), (_HAS_PICK, *skips))


def read_without(route: Any, *, grpc: bool) -> None:
    """Let a route read the model of requests that got no pick."""
    reader = _GRPC_WITHOUT if grpc else _JSON_WITHOUT
    enable(route, (_MARK, reader, _ROUTE_WITHOUT), _PICKED)


def _json() -> Any:
    message = json_to_metadata_pb2.JsonToMetadata()
    rules = message.request_rules
    # Engines read a body as JSON whatever its content type says.
    rules.allow_empty_content_type = True
    rules.allow_content_types_regex.regex = ".*"
    rule = rules.rules.add()
    rule.selectors.add(key="model")
    rule.on_present.metadata_namespace = NAMESPACE
    rule.on_present.key = "model"
    for outcome, key in ((rule.on_missing, "missing"), (rule.on_error, "error")):
        outcome.metadata_namespace = NAMESPACE
        outcome.key = key
        outcome.value.bool_value = True
    return message


def _grpc() -> Any:
    message = config_pb2.GrpcFieldExtractionConfig()
    message.descriptor_set.inline_bytes = descriptor_set()
    for method, field in NAME_FIELDS.items():
        extractions = message.extractions_by_method[f"{PACKAGE}.{SERVICE}.{method}"]
        extractions.request_field_extractions[field].SetInParent()
    return message


def _lua(script: str) -> Any:
    message = lua_pb2.Lua()
    message.default_source_code.inline_string = script
    # The scripts clear it themselves, before they set the header that only the picker reads.
    message.clear_route_cache.value = False
    return message


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
