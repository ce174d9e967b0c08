"""Answers to reflection, read by a client of its own."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from gateway.streams.reflection import INVALID_ARGUMENT, NOT_FOUND, VERSIONS, Reflection
from gateway.streams.watches import _DESCRIPTORS

SERVICES = [
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "inference.GRPCInferenceService",
]
DESCRIPTORS = _DESCRIPTORS.read_bytes()


def ask(version: str = "v1", **asked: Any) -> Any:
    """Return the response to a request."""
    reflection = Reflection(DESCRIPTORS, version)
    request = reflection._request(host="h", **asked)
    response = reflection._response.FromString(reflection.answer(request.SerializeToString()))
    assert (response.valid_host, response.original_request) == ("h", request)
    return response


def error(**asked: Any) -> tuple[int, str]:
    """Return the error in the response to a request."""
    said = ask(**asked)
    assert said.WhichOneof("message_response") == "error_response"
    return said.error_response.error_code, said.error_response.error_message


@pytest.mark.parametrize("version", VERSIONS)
def test_the_services_that_clients_reach_are_listed(version: str):
    """Triton's, health, and reflection in both versions."""
    said = ask(version, list_services="*").list_services_response
    assert [each.name for each in said.service] == SERVICES


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("service", SERVICES)
def test_a_client_can_build_each_service_from_its_file(version: str, service: str):
    """Files come in an order in which each finds what it needs."""
    said = ask(version, file_containing_symbol=service).file_descriptor_response
    pool = descriptor_pool.DescriptorPool()
    for each in said.file_descriptor_proto:
        pool.AddSerializedFile(each)
    found = pool.FindServiceByName(service)
    assert found.methods
    assert message_factory.GetMessageClass(found.methods[0].input_type)() is not None


def test_triton_is_described_as_its_client_has_it():
    """After another tritonclient is installed, `make protos` writes the descriptors anew."""
    said = ask(file_by_filename="grpc_service.proto").file_descriptor_response
    names = [
        descriptor_pb2.FileDescriptorProto.FromString(each).name
        for each in said.file_descriptor_proto
    ]
    assert names == ["model_config.proto", "grpc_service.proto"]
    assert said.file_descriptor_proto[1] == service_pb2.DESCRIPTOR.serialized_pb


@pytest.mark.parametrize(
    ("symbol", "count"),
    [
        ("inference.GRPCInferenceService.ModelInfer", 2),
        ("inference.ModelInferRequest.InferInputTensor", 2),
        ("inference.DataType", 1),
        ("inference.ModelInferRequest.model_name", 2),
        ("grpc.health.v1.Health.Watch", 1),
    ],
)
def test_symbols_of_every_kind_are_found(symbol: str, count: int):
    """Services, methods, messages within messages, enumerations and fields."""
    said = ask(file_containing_symbol=symbol).file_descriptor_response
    assert len(said.file_descriptor_proto) == count


def test_what_is_not_there_has_an_error():
    """Each kind of question; names in errors are cut."""
    assert error(file_containing_symbol="a.B") == (NOT_FOUND, "no symbol 'a.B'")
    assert error(file_by_filename="x" * 60_000)[1] == f"no file '{'x' * 128}'"
    assert error(all_extension_numbers_of_type="a.B") == (NOT_FOUND, "no message 'a.B'")
    extension = {"containing_type": "inference.DataType", "extension_number": 7}
    assert error(file_containing_extension=extension)[0] == NOT_FOUND
    assert error() == (INVALID_ARGUMENT, "the request asks nothing")


def test_messages_have_no_extensions():
    """They are of proto3."""
    name = "inference.ModelInferRequest"
    said = ask(all_extension_numbers_of_type=name).all_extension_numbers_response
    assert (said.base_type_name, list(said.extension_number)) == (name, [])


@given(st.binary(max_size=200))
def test_any_bytes_have_an_answer(message: bytes):
    """A client's mistake ends neither its stream nor the gateway."""
    reflection = KEPT
    said = reflection._response.FromString(reflection.answer(message))
    assert said.WhichOneof("message_response") is not None


KEPT = Reflection(DESCRIPTORS, "v1alpha")
