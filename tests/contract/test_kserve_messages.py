"""The gateway's messages are Triton's on the wire."""

from __future__ import annotations

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc import model_config_pb2, service_pb2

from tidegate_api.kserve.v1 import kserve_pb2

SAME = {
    "ModelRequest": "ModelConfigRequest",
    "LoadRequest": "RepositoryModelLoadRequest",
    "ReadyResponse": "ModelReadyResponse",
    "ChangeRequest": "TraceSettingRequest",
    "TensorMetadata": "ModelMetadataResponse.TensorMetadata",
    "ModelIndex": "RepositoryIndexResponse.ModelIndex",
}
"""Messages that have another name at Triton's."""
MAPS = "ConfigMaps"


def of_triton(name: str) -> Descriptor:
    """Return Triton's message."""
    outer, _, inner = SAME.get(name, name).partition(".")
    found = service_pb2.DESCRIPTOR.message_types_by_name[outer]
    return found.nested_types_by_name[inner] if inner else found


def differences(ours: Descriptor, theirs: Descriptor, at: str) -> list[str]:
    """Return the fields that are not Triton's."""
    found = []
    for field in ours.fields:
        other = theirs.fields_by_number.get(field.number)
        if other is None or other.name != field.name:
            found.append(f"{at}.{field.name}")
        elif field.type == FieldDescriptor.TYPE_MESSAGE and other.type == field.type:
            below = f"{at}.{field.name}"
            found += differences(field.message_type, other.message_type, below)
        elif field.type == FieldDescriptor.TYPE_BYTES != other.type:
            # Not read: what a replica wrote is kept.
            if other.type != FieldDescriptor.TYPE_MESSAGE:
                found.append(f"{at}.{field.name} is no message")
        elif (field.type, field.is_repeated) != (other.type, other.is_repeated):
            found.append(f"{at}.{field.name} has another type")
    return found


@pytest.mark.parametrize("name", sorted(kserve_pb2.DESCRIPTOR.message_types_by_name))
def test_each_field_is_tritons(name: str):
    """By number, name and type."""
    ours = kserve_pb2.DESCRIPTOR.message_types_by_name[name]
    theirs = model_config_pb2.ModelConfig.DESCRIPTOR if name == MAPS else of_triton(name)
    assert differences(ours, theirs, name) == []


def maps_of(message: Descriptor, seen: frozenset[str] = frozenset()) -> set[tuple[int, ...]]:
    """Return the numbers of the fields that lead to each map."""
    if message.full_name in seen:
        return set()
    found: set[tuple[int, ...]] = set()
    for field in message.fields:
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            found.add((field.number,))
        else:
            below = maps_of(field.message_type, seen | {message.full_name})
            found |= {(field.number, *each) for each in below}
    return found


def test_every_map_of_a_configuration_is_known():
    """Else two replicas with one configuration would seem to differ."""
    ours = kserve_pb2.DESCRIPTOR.message_types_by_name[MAPS]
    assert maps_of(ours) == maps_of(model_config_pb2.ModelConfig.DESCRIPTOR)


def test_an_answer_is_read_whole():
    """Statistics through our messages are those of Triton's."""
    theirs = service_pb2.ModelStatisticsResponse()
    row = theirs.model_stats.add(name="m", version="1", inference_count=2**63, execution_count=3)
    row.inference_stats.success.count = 5
    row.response_stats["0"].compute_infer.ns = 7
    row.batch_stats.add(batch_size=4).compute_input.ns = 9
    row.memory_usage.add(type="GPU", id=1, byte_size=11)
    ours = kserve_pb2.ModelStatisticsResponse.FromString(theirs.SerializeToString())
    options = {"preserving_proto_field_name": True}
    assert json_format.MessageToDict(ours, **options) == json_format.MessageToDict(
        theirs, **options
    )
