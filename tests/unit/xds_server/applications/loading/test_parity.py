"""What makes two replicas' models the same, with answers of a real Triton."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_common.parity import ParityError, canonical
from xds_server.applications.loading.parity import (
    MAX_DIFFERENCES,
    ModelDescription,
    described,
    differences,
)

RECORDED = Path(__file__).parents[4] / "contract" / "fixtures" / "triton-2.51.0"
CONFIG: dict[str, Any] = json.loads((RECORDED / "model_config.json").read_bytes())
METADATA: dict[str, Any] = json.loads((RECORDED / "model_metadata.json").read_bytes())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


def model(metadata: dict[str, Any] | None = None, **config: Any) -> ModelDescription:
    """Return a description that is the recorded one but for these fields."""
    told = METADATA | (metadata or {})
    return described(json.dumps(CONFIG | config).encode(), json.dumps(told).encode())


def test_a_recorded_model_is_like_itself() -> None:
    """In any order of keys."""
    turned = described(
        json.dumps(dict(reversed(CONFIG.items()))).encode(), json.dumps(METADATA).encode()
    )
    assert turned.digest == model().digest
    assert differences({"r1": model(), "r2": turned}) == []


def test_what_a_recorded_model_is() -> None:
    """The configuration is short without defaults, and has a digest of 64 digits."""
    made = model()
    assert made.config == {
        "name": "echo",
        "backend": "python",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 8,
        "input": [{"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]}],
        "output": [{"name": "text_output", "data_type": "TYPE_STRING", "dims": [1]}],
        "optimization": {
            "input_pinned_memory": {"enable": True},
            "output_pinned_memory": {"enable": True},
        },
        "instance_group": [{"kind": "KIND_CPU", "count": 1}],
        "default_model_filename": "model.py",
    }
    assert made.versions == ("1",)
    assert made.platform == "python"
    assert made.tensors == (
        "input text_input BYTES [-1,1]",
        "output text_output BYTES [-1,1]",
    )
    assert len(made.digest) == 64
    assert not made.has_warmup


@pytest.mark.parametrize(
    "change",
    [
        {"dynamic_batching": {"preferred_batch_size": [], "max_queue_delay_microseconds": 0}},
        {"runtime": "", "model_warmup": [], "parameters": {}},
        {"instance_group": [{"name": "echo_9", "kind": "KIND_CPU", "count": 1, "gpus": [3]}]},
        {"input": [{"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]}]},
    ],
)
def test_what_completion_and_the_machine_add_is_no_difference(change: dict[str, Any]) -> None:
    """One replica completes configurations, another does not, and its GPU has another number."""
    assert model(**change).digest == model().digest


def test_the_order_of_inputs_is_no_difference() -> None:
    """Requests name tensors."""
    one, other = ({"name": each, "dims": [1]} for each in "ab")
    assert canonical({"input": [one, other]}) == canonical({"input": [other, one]})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_batch_size": 4}, "max_batch_size (4, 8)"),
        (
            {"parameters": {"k": {"string_value": "v"}}},
            'parameters ({"k": {"string_value": "v"}}, not set)',
        ),
        ({"instance_group": [{"kind": "KIND_CPU", "count": 2}]}, "instance_group[0].count (2, 1)"),
        ({"default_model_filename": ""}, 'default_model_filename (not set, "model.py")'),
    ],
)
def test_what_the_model_is_makes_a_difference(change: dict[str, Any], words: str) -> None:
    """The sentence has the place and both values, and names the replica of the smaller part."""
    (found,) = differences({"r1": model(), "r2": model(), "r3": model(**change)})
    assert found.startswith(f"configuration: r3 differs from r1 in {words}")


def test_versions_platform_and_shapes_are_told_by_name() -> None:
    """They are what clients see."""
    other = model(
        {
            "versions": ["2"],
            "platform": "onnxruntime",
            "outputs": [{"name": "text_output", "datatype": "BYTES", "shape": [-1, 2]}],
        }
    )
    given = "input text_input BYTES [-1,1], output text_output BYTES"
    assert differences({"r1": model(), "r2": other}) == [
        "versions: r2 has 2, r1 has 1",
        "platform: r2 has onnxruntime, r1 has python",
        f"inputs and outputs: r2 has {given} [-1,2], r1 has {given} [-1,1]",
    ]


def test_a_version_that_is_wanted_must_be_there() -> None:
    """Also where all replicas agree on another."""
    assert differences({"r1": model()}, wanted="2") == ["r1 has no version 2 but 1"]


def test_differences_are_bounded() -> None:
    """A fleet of replicas that all differ fills no screen."""
    many = {f"r{each}": model(max_batch_size=each) for each in range(1, 60)}
    found = differences(many)
    assert len(found) == MAX_DIFFERENCES
    assert found[-1] == f"and {58 - MAX_DIFFERENCES + 1} more"


def test_the_models_own_warmup_is_known() -> None:
    """The server has sent it by the time that the model is ready."""
    assert model(model_warmup=[{"name": "w", "batch_size": 1}]).has_warmup


@pytest.mark.parametrize(
    ("config", "metadata"),
    [
        (b"x", b"{}"),
        (b"[]", b"{}"),
        (b"{}", b'{"versions": 1}'),
        (b"{}", b'{"inputs": {}}'),
        (b"{}", b'{"inputs": [{"name": "x"}]}'),
        (b"[" * 100_000, b"{}"),
        (b'{"a":' * 90 + b"1" + b"}" * 90, b"{}"),
    ],
)
def test_answers_that_describe_nothing_are_errors(config: bytes, metadata: bytes) -> None:
    """They are not parity."""
    with pytest.raises(ParityError):
        described(config, metadata)


@given(JSON, JSON)
def test_hostile_answers_are_a_description_or_an_error(config: Any, metadata: Any) -> None:
    """A replica may answer anything."""
    with contextlib.suppress(ParityError):
        made = described(json.dumps(config).encode(), json.dumps(metadata).encode())
        assert differences({"r1": made, "r2": made}) == []
        assert canonical(made.config) == made.config
