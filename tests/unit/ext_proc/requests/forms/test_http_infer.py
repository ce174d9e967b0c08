"""HTTP infer bodies."""

from __future__ import annotations

import json
import struct

import pytest

from ext_proc.requests.forms.http_infer import LENGTH_HEADER, MAX_INPUTS, read_infer
from ext_proc.requests.parsing.errors import BadRequest
from ext_proc.routing.values.request import Features, Form

HEAD = Features(Form.HTTP_INFER, model="m")


def read(body, headers=None, *, complete: bool = True) -> Features:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_infer(HEAD, headers or {}, data, complete=complete)


def binary(document, *blobs: bytes) -> tuple[bytes, dict[str, str]]:
    head = json.dumps(document).encode()
    return head + b"".join(blobs), {LENGTH_HEADER: str(len(head))}


def element(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


def text_input(*data, **more):
    return {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": list(data), **more}


def test_parameters():
    """Id, sequence, priority, timeout and adapter are read; the body's model is ignored."""
    features = read(
        {
            "id": "r",
            "model_name": "other",
            "parameters": {
                "sequence_id": 5,
                "sequence_start": True,
                "sequence_end": True,
                "priority": 1,
                "timeout": 250_000,
                "lora_name": "a",
                "max_tokens": 3,
            },
        }
    )
    assert features.model == "m"
    assert (features.request_id, features.sequence_id) == ("r", 5)
    assert (features.sequence_start, features.sequence_end) == (True, True)
    assert (features.priority, features.timeout_s, features.max_tokens) == (1, 0.25, 3)
    assert features.adapter == "a"


@pytest.mark.parametrize(("value", "expected"), [("5", "5"), (5, 5), (0, None), ("", None)])
def test_sequence_kinds(value, expected):
    """The integer 5 and the text "5" are different sequences; 0 and "" are none."""
    assert read({"parameters": {"sequence_id": value}}).sequence_id == expected


@pytest.mark.parametrize("data", [["hello"], [["hello"]], [[["hello"]]]])
def test_inline_data_may_be_nested(data):
    """A prompt is found flat or nested."""
    assert read({"inputs": [text_input(*data)]}).prompt == b"hello"


def test_inline_tokens_and_limits():
    """Token ids and the limit are read from integer tensors."""
    features = read(
        {
            "inputs": [
                {"name": "input_ids", "datatype": "INT32", "data": [[1, 2], [3, 4]]},
                {"name": "request_output_len", "datatype": "INT32", "data": [[7]]},
                {"name": "image", "datatype": "FP32", "data": [0.5]},
                {"name": "prompt", "datatype": "FP32", "data": [0.5]},
            ]
        }
    )
    assert features.prompt == struct.pack("<4i", 1, 2, 3, 4)
    assert features.max_tokens == 7


def test_binary_inputs():
    """Blobs follow in the order of the inputs that have one."""
    document = {
        "inputs": [
            {"name": "image", "datatype": "FP32", "parameters": {"binary_data_size": 8}},
            text_input("ignored", name="other"),
            {
                "name": "prompt",
                "datatype": "BYTES",
                "parameters": {"shared_memory_region": "r", "binary_data_size": 4},
            },
            {"name": "text_input", "datatype": "BYTES", "parameters": {"binary_data_size": 9}},
        ]
    }
    body, headers = binary(document, bytes(8), element(b"hello"))
    assert read(body, headers).prompt == b"hello"


def test_cut_binary_part():
    """A prompt whose blob is cut is read as far as present."""
    document = {
        "inputs": [
            {"name": "text_input", "datatype": "BYTES", "parameters": {"binary_data_size": 9}}
        ]
    }
    body, headers = binary(document, element(b"hello"))
    features = read(body[:-2], headers, complete=False)
    assert (features.prompt, features.prompt_is_partial) == (b"hel", True)
    with pytest.raises(BadRequest, match="declares 9 binary bytes, but the body has only 7"):
        read(body[:-2], headers)


def test_raw_tensor():
    """A header length of 0 is one raw tensor without JSON: nothing is read."""
    assert read(b"\xff\xfe", {LENGTH_HEADER: "0"}) == HEAD


def test_truncation():
    """Every first part yields only features of the whole body."""
    document = {"id": "r", "inputs": [text_input("hello")], "parameters": {"sequence_id": "abc"}}
    body = json.dumps(document).encode()
    for end in range(len(body)):
        features = read(body[:end], complete=False)
        assert features.sequence_id in (None, "abc")
        assert features.request_id in (None, "r")
        assert b"hello".startswith(features.prompt or b"")


@pytest.mark.parametrize(
    ("body", "headers", "words"),
    [
        (b"", {}, "not valid JSON"),
        (b"[]", {}, "must be a JSON object"),
        (b"{}", {LENGTH_HEADER: "9"}, "is 9, but the body has only 2"),
        (b"{}", {LENGTH_HEADER: "x"}, "must be the number"),
        (b"{}", {LENGTH_HEADER: "1" * 11}, "must be the number"),
        (b"{}", {LENGTH_HEADER: "-1"}, "must be the number"),
        ({"inputs": {}}, {}, "`inputs` must be an array"),
        ({"inputs": [1]}, {}, r"`inputs\[0\]` must be an object"),
        ({"inputs": [text_input(1)]}, {}, "must be a string"),
        ({"inputs": [text_input("a", name="input_ids", datatype="INT32")]}, {}, "integers"),
        ({"inputs": [{}] * (MAX_INPUTS + 1)}, {}, "more than 1024 inputs"),
        ({"parameters": []}, {}, "`parameters` must be an object"),
        ({"parameters": {"sequence_id": 1.5}}, {}, "sequence_id"),
        ({"inputs": [{"parameters": {"binary_data_size": -1}}]}, {}, "must be a byte count"),
    ],
)
def test_bad_bodies(body, headers, words):
    """Each kind of damage has its own clear error."""
    with pytest.raises(BadRequest, match=words):
        read(body, headers)


def test_the_first_input_of_a_name_counts():
    """If an input is given twice, the first is read."""
    assert read({"inputs": [text_input("one"), text_input("two")]}).prompt == b"one"
