"""The OpenAPI document of the admin API, from the descriptors of its protos. Pure.

Schemas follow protobuf's JSON mapping with the protos' field names: 64-bit integers are strings,
and optional fields that are unset are left out.
Source: https://protobuf.dev/programming-guides/json/, https://spec.openapis.org/oas/v3.1.0.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from tidegate_api.admin.v1 import admin_pb2
from xds_server.admin.access.caller import ACCESS, ADMIN_SERVICE, CHANGES
from xds_server.admin.service import AdminService

VERSION: Final = "v1"
ROOT: Final = f"/{VERSION}"
DOCUMENT_PATH: Final = "/openapi.json"

HTTP_STATUS: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNAVAILABLE: 503,
}
"""HTTP statuses by gRPC's (google/rpc/code.proto)."""

_SCALARS: Final[dict[int, dict[str, Any]]] = {
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
    FieldDescriptor.TYPE_INT32: {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    FieldDescriptor.TYPE_UINT64: {"type": "string", "format": "uint64", "pattern": "^[0-9]+$"},
    FieldDescriptor.TYPE_INT64: {"type": "string", "format": "int64", "pattern": "^-?[0-9]+$"},
    FieldDescriptor.TYPE_DOUBLE: {"type": "number", "format": "double"},
}
_ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {
        "code": {"type": "string", "description": "Name of the gRPC status."},
        "message": {"type": "string", "description": "What is wrong, and what would be right."},
    },
}


def methods() -> dict[str, str]:
    """Return the paths of gRPC's methods by those of HTTP."""
    service = admin_pb2.DESCRIPTOR.services_by_name["Admin"]
    return {f"{ROOT}/{each.name}": f"/{ADMIN_SERVICE}/{each.name}" for each in service.methods}


def verb_of(path: str) -> str:
    """Return the HTTP method of a gRPC method: what reads is ``GET``."""
    return "POST" if path in CHANGES else "GET"


def document() -> dict[str, Any]:
    """Return the document."""
    service = admin_pb2.DESCRIPTOR.services_by_name["Admin"]
    schemas: dict[str, Any] = {"Error": _ERROR}
    paths = {}
    for method in service.methods:
        rpc = f"/{ADMIN_SERVICE}/{method.name}"
        paths[f"{ROOT}/{method.name}"] = {
            verb_of(rpc).lower(): _operation(method.name, rpc, method, schemas)
        }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidegate admin API",
            "version": VERSION,
            "description": "The control server's service for operators (admin.proto).",
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "certificate": {"type": "mutualTLS"},
            },
        },
        "security": [{"token": []}, {"certificate": []}, {}],
    }


def _operation(name: str, rpc: str, method: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    roles = ", ".join(sorted(ACCESS.methods[rpc]))
    said = (inspect.getdoc(getattr(AdminService, name)) or "").splitlines()
    found: dict[str, Any] = {
        "operationId": name,
        "summary": said[0] if said else name,
        "description": f"Roles: {roles}.",
        "responses": {
            "200": {"description": "OK", "content": _json(_reference(method.output_type, schemas))},
            "default": {
                "description": "It was refused or has failed.",
                "content": _json({"$ref": "#/components/schemas/Error"}),
            },
        },
    }
    if verb_of(rpc) == "POST":
        body = _json(_reference(method.input_type, schemas))
        found["requestBody"] = {"required": True, "content": body}
    elif method.input_type.fields:
        found["parameters"] = [
            {"name": each.name, "in": "query", "required": False, "schema": _schema(each, schemas)}
            for each in method.input_type.fields
        ]
    return found


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _reference(message: Descriptor, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return a reference to a message's schema, which is added if it is not there."""
    if message.name not in schemas:
        schemas[message.name] = {}  # a message may contain itself
        schemas[message.name] = {
            "type": "object",
            "properties": {each.name: _schema(each, schemas) for each in message.fields},
            "additionalProperties": False,
        }
    return {"$ref": f"#/components/schemas/{message.name}"}


def _schema(field: FieldDescriptor, schemas: dict[str, Any]) -> dict[str, Any]:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        return {
            "type": "object",
            "additionalProperties": _schema(kind.fields_by_name["value"], schemas),
        }
    one = dict(_SCALARS[field.type]) if kind is None else _reference(kind, schemas)
    return {"type": "array", "items": one} if field.is_repeated else one
