"""Descriptions that count, and those that differ."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format
from tritonclient.grpc import service_pb2

from gateway.merge import engines, parity
from gateway.merge.parity import (
    DescriptionError,
    form_of_config,
    form_of_json,
    form_of_json_config,
    form_without,
)
from tidegate_api.kserve.v1 import kserve_pb2


def config(*names: str, backend: str = "python", steps: tuple[str, ...] = ("a", "b")) -> bytes:
    """Return a configuration whose maps are filled in the order of names."""
    message = service_pb2.ModelConfigResponse()
    made = message.config
    made.name, made.backend = "m", backend
    made.input.add(name="x", dims=[1, 2])
    for name in names:
        made.parameters[name].string_value = f"value of {name}"
        made.metric_tags[name] = name
        made.ensemble_scheduling.step.add(model_name="s").input_map.update(
            {each: each for each in steps}
        )
    return message.SerializeToString()


def test_the_order_of_keys_is_no_difference():
    """Servers write maps in any order."""
    assert form_of_json(b'{"a": 1, "b": {"c": 2, "d": 3}}') == form_of_json(
        b'{"b": {"d": 3, "c": 2}, "a": 1}'
    )
    assert form_of_json(b'{"a": [1, 2]}') != form_of_json(b'{"a": [2, 1]}')


def test_the_order_of_a_maps_entries_is_no_difference():
    """Also in messages, and inside of others."""
    for steps in (("a", "b"), ("b", "a")):
        assert form_of_config(config("p", "q", steps=steps)) == form_of_config(config("p", "q"))
    raw = [b"r\x05\n\x01a\x12\x00", b"r\x05\n\x01b\x12\x00"]  # `parameters` in both orders
    forms = {
        form_of_config(b"\x0a" + bytes([len(body)]) + body)
        for body in (b"".join(raw), b"".join(reversed(raw)))
    }
    assert len(forms) == 1


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"dynamic_batching": {}}, True),
        ({"optimization": {"input_pinned_memory": {}, "graph": {}}}, True),
        ({"dynamic_batching": {"preferred_batch_size": [4]}}, False),
        ({"optimization": {"input_pinned_memory": {"enable": True}}}, False),
        ({"instance_group": [{"name": "m_9", "gpus": [3], "host_policy": "h", "count": 1}]}, True),
        ({"instance_group": [{"name": "m_0", "count": 2}]}, False),
        ({"input": [{"name": "y", "dims": [3]}, {"name": "x", "dims": [1, 2]}]}, True),
        ({"input": [{"name": "y", "dims": [1, 2]}, {"name": "x", "dims": [3]}]}, False),
        ({"max_batch_size": 4}, False),
    ],
)
def test_both_protocols_compare_alike(change: dict[str, Any], same: bool):
    """What completion and the machine add is no difference, over HTTP and over gRPC."""
    usual = {
        "name": "m",
        "input": [{"name": "x", "dims": [1, 2]}, {"name": "y", "dims": [3]}],
        "instance_group": [{"name": "m_0", "gpus": [0], "count": 1}],
        "max_batch_size": 8,
    }
    messages, texts = [], []
    for each in (usual, usual | change):
        answer = json_format.ParseDict({"config": each}, service_pb2.ModelConfigResponse())
        messages.append(form_of_config(answer.SerializeToString()))
        texts.append(form_of_json_config(json.dumps(each).encode()))
    assert (messages[0] == messages[1], texts[0] == texts[1]) == (same, same)


def test_the_order_of_inputs_is_no_difference():
    """In metadata, as JSON and as a message; requests name tensors."""
    rows = [{"name": name, "datatype": "FP32", "shape": ["1"]} for name in "ab"]
    forms, texts = set(), set()
    for each in (rows, rows[::-1]):
        made = json_format.ParseDict(
            {"name": "m", "inputs": each}, kserve_pb2.ModelMetadataResponse()
        )
        forms.add(form_without(made, "versions"))
        texts.add(form_of_json(json.dumps({"inputs": each}).encode()))
    assert (len(forms), len(texts)) == (1, 1)


def test_a_configuration_without_end_is_refused():
    """It would take the stack."""
    with pytest.raises(DescriptionError):
        form_of_json_config(b'{"a":' * 90 + b"1" + b"}" * 90)


def test_another_value_is_a_difference():
    """Of a field that is known, or is not."""
    assert form_of_config(config("p")) != form_of_config(config("q"))
    assert form_of_config(config("p")) != form_of_config(config("p", backend="onnxruntime"))


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"3", b"\xff"])
def test_what_is_no_object_is_refused(body: bytes):
    """A replica may answer anything."""
    with pytest.raises(DescriptionError):
        form_of_json(body)


def test_a_message_that_cannot_be_read_is_refused():
    """Whether the answer or what is in it."""
    for body in (b"\xff\xff", b"\x0a\x02\xff\xff"):
        with pytest.raises(DescriptionError):
            form_of_config(body)


def test_versions_are_those_of_all():
    """In the order of their numbers."""
    assert parity.versions_of({"r1": ["2", "1"], "r2": ["10", "2"]}) == ["1", "2", "10"]
    assert parity.common({"r1": ["a", "b", "c"], "r2": ["c", "a"]}) == ["a", "c"]
    many = {"r": [str(n) for n in range(5000)]}
    assert len(parity.versions_of(many)) == parity.MAX_VERSIONS


def test_a_model_of_several_engines_is_listed_once():
    """As the first one describes it."""
    one = engines.models_of(b'{"data": [{"id": "a", "created": 1}]}')
    two = engines.models_of(b'{"data": [{"id": "a", "created": 2}, {"id": "b"}]}')
    made = engines.merged([one, two])
    assert made == {"object": "list", "data": [{"id": "a", "created": 1}, {"id": "b"}]}
    endless = ({"id": str(n)} for n in range(20_000))
    assert len(engines.merged([endless])["data"]) == engines.MAX_MODELS


@pytest.mark.parametrize(
    "body", [b"{}", b'{"data": {}}', b'{"data": [1]}', b'{"data": [{"id": ""}]}', b"[]"]
)
def test_what_is_no_list_of_models_is_refused(body: bytes):
    """As a whole."""
    with pytest.raises(DescriptionError):
        engines.models_of(body)
