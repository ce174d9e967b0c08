"""The fleet file's JSON Schema (draft 2020-12), for editors and other tools.

It covers single fields; rules over several fields are in ``xds_server.fleet.rules``.
"""

from __future__ import annotations

from typing import Any

from xds_server.fleet.model.fleet import Fleet

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return the schema as plain values, ready to be written as JSON."""
    schema = Fleet.model_json_schema(mode="validation")
    schema["$defs"]["EndpointSpec"]["anyOf"] = [
        {"required": ["http"], "properties": {"http": {"type": "string"}}},
        {"required": ["grpc"], "properties": {"grpc": {"type": "string"}}},
    ]
    return {"$schema": DIALECT, **schema, "title": "Tidegate fleet"}
