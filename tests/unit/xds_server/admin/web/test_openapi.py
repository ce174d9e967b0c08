"""The OpenAPI document says what is served."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import jsonschema
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from tidegate_api.admin.v1 import admin_pb2
from xds_server.admin.access.caller import ACCESS, CHANGES
from xds_server.admin.answers import explained
from xds_server.admin.web.openapi import HTTP_STATUS, document, methods, verb_of

COMMITTED = Path(__file__).parents[5] / "docs" / "reference" / "openapi.json"


def test_the_committed_document_is_current() -> None:
    """`python docs/generate` writes it."""
    assert json.loads(COMMITTED.read_text()) == document()


def test_each_call_of_the_service_is_in_it() -> None:
    """With the roles that it needs; what reads is a GET, what changes a POST."""
    names = {each.name for each in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods}
    paths = document()["paths"]
    assert {f"/v1/{name}" for name in names} == paths.keys() == methods().keys()
    for path, rpc in methods().items():
        ((verb, operation),) = paths[path].items()
        assert verb == verb_of(rpc).lower() == ("post" if rpc in CHANGES else "get")
        assert operation["description"] == f"Roles: {', '.join(sorted(ACCESS.methods[rpc]))}."
        assert operation["summary"].endswith(".")


def test_each_reference_leads_to_a_schema() -> None:
    """And each schema is used."""
    made = document()
    text = json.dumps(made)
    for name in made["components"]["schemas"]:
        assert f'"#/components/schemas/{name}"' in text
    found = {each.split('"')[0] for each in text.split("#/components/schemas/")[1:]}
    assert found == set(made["components"]["schemas"])


def test_each_status_of_the_service_has_one_of_http() -> None:
    """A missing one would be a 500."""
    used = {code for _, code in explained._STATUS} | {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
    assert used <= HTTP_STATUS.keys()


VALUES = {
    FieldDescriptor.CPPTYPE_STRING: "x",
    FieldDescriptor.CPPTYPE_BOOL: True,
    FieldDescriptor.CPPTYPE_UINT32: 2**32 - 1,
    FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1,
    FieldDescriptor.CPPTYPE_DOUBLE: 0.5,
}


def filled(message):
    """Return a message with a value in each field."""
    for each in message.DESCRIPTOR.fields:
        kind = each.message_type
        if kind is not None and kind.GetOptions().map_entry:
            getattr(message, each.name)["k"] = VALUES[kind.fields_by_name["value"].cpp_type]
        elif kind is not None:
            made = getattr(message, each.name)
            filled(made.add() if each.is_repeated else made)
        elif each.is_repeated:
            getattr(message, each.name).append(VALUES[each.cpp_type])
        else:
            setattr(message, each.name, VALUES[each.cpp_type])
    return message


def messages() -> list[Descriptor]:
    """Return the requests and answers of all calls."""
    service = admin_pb2.DESCRIPTOR.services_by_name["Admin"]
    return [each for call in service.methods for each in (call.input_type, call.output_type)]


@pytest.mark.parametrize("kind", sorted({each.name for each in messages()}))
def test_a_message_is_as_its_schema_says(kind: str) -> None:
    """Full and empty; a field that the schema lacks is not taken."""
    made = document()
    if kind not in made["components"]["schemas"]:  # arguments of a GET are in its query
        assert kind.startswith(("Get", "List", "Diff"))
        return
    schema = {"$ref": f"#/components/schemas/{kind}", "components": made["components"]}
    for message in (getattr(admin_pb2, kind)(), filled(getattr(admin_pb2, kind)())):
        given = json_format.MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        jsonschema.validate(given, schema, cls=jsonschema.Draft202012Validator)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"other": 1}, schema, cls=jsonschema.Draft202012Validator)
