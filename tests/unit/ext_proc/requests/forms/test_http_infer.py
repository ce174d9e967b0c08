"""HTTP infer bodies."""

from __future__ import annotations

import json
import struct

import pytest

from ext_proc.requests.forms.http_infer import LENGTH_HEADER, MAX_INPUTS, read_infer
from ext_proc.requests.parsing.errors import BadRequest, UnsoundRequest
from ext_proc.routing.values.refusal import RefusalKind
from ext_proc.routing.values.request import Features, Form

HEAD = Features(Form.HTTP_INFER, model="m")


def read(body, headers=None, *, complete: bool = True) -> Features:
    if isinstance(body, dict):
        body = {"inputs": [], **body}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_infer(HEAD.changed(), headers or {}, data, complete=complete)


def binary(document, *blobs: bytes) -> tuple[bytes, dict[str, str]]:
    head = json.dumps(document).encode()
    return head + b"".join(blobs), {LENGTH_HEADER: str(len(head))}


def element(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


def text_input(*data, **more):
    shape = [len(data)]
    return {"name": "text_input", "datatype": "BYTES", "shape": shape, "data": list(data), **more}


def inline(name: str, datatype: str, shape, data):
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def far(name: str, datatype: str, shape, size: int):
    """Return an input in the binary part."""
    parameters = {"binary_data_size": size}
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": parameters}


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
    tensors = [
        inline("input_ids", "INT32", [2, 2], [[1, 2], [3, 4]]),
        inline("request_output_len", "INT32", [1, 1], [[7]]),
        inline("image", "FP32", [1], [0.5]),
        inline("prompt", "FP32", [1], [0.5]),
    ]
    features = read({"inputs": tensors})
    assert features.prompt == struct.pack("<4i", 1, 2, 3, 4)
    assert features.max_tokens == 7


def test_binary_inputs():
    """Blobs follow in the order of the inputs that have one."""
    shared = far("prompt", "BYTES", [1], 4)
    shared["parameters"]["shared_memory_region"] = "r"
    tensors = [
        far("image", "FP32", [2], 8),
        text_input("ignored", name="other"),
        shared,
        far("text_input", "BYTES", [1], 9),
    ]
    body, headers = binary({"inputs": tensors}, bytes(8), element(b"hello"))
    assert read(body, headers).prompt == b"hello"


def test_cut_binary_part():
    """A prompt whose blob is cut is read as far as present."""
    body, headers = binary({"inputs": [far("text_input", "BYTES", [1], 9)]}, element(b"hello"))
    features = read(body[:-2], headers, complete=False)
    assert (features.prompt, features.prompt_is_partial) == (b"hel", True)
    with pytest.raises(BadRequest, match="declares 9 binary bytes, but the body has only 7"):
        read(body[:-2], headers)


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
        (b" ", {}, "not valid JSON"),
        (b"[]", {}, "must be a JSON object"),
        (b"{}", {LENGTH_HEADER: "9"}, "is 9, but the body has only 2"),
        ({"inputs": {}}, {}, "`inputs` must be an array"),
        ({"inputs": [1]}, {}, r"`inputs\[0\]` must be an object"),
        ({"inputs": [text_input(1)]}, {}, "must be a string"),
        ({"inputs": [text_input("a", name="input_ids", datatype="INT32")]}, {}, "integers"),
        ({"inputs": [{}] * (MAX_INPUTS + 1)}, {}, "more than 800 inputs"),
        ({"outputs": [{}]}, {}, r"`outputs\[0\]` must have a `name`"),
        ({"outputs": [{"name": "y"}] * (MAX_INPUTS + 1)}, {}, "more than 800 outputs"),
        ({"parameters": []}, {}, "`parameters` must be an object"),
        ({"parameters": {"sequence_start": 1}}, {}, "sequence_start` has a wrong type"),
        ({"parameters": {"sequence_id": 1.5}}, {}, "sequence_id"),
        ({"parameters": {"sequence_id": "x" * 129}}, {}, "at most 128"),
        *(
            ({"inputs": [{"parameters": {"binary_data_size": size}}]}, {}, "must be a byte count")
            for size in (-1, 1.5, "4", True, None, [], 2**64)
        ),
    ],
)
def test_bad_bodies(body, headers, words):
    """Each kind of damage has its own clear error."""
    with pytest.raises(BadRequest, match=words):
        read(body, headers)


def test_the_first_input_of_a_name_counts():
    """If an input is given twice, the first is read."""
    assert read({"inputs": [text_input("one"), text_input("two")]}).prompt == b"one"


def test_the_largest_declared_size_is_read():
    """A pool bounds it, whatever the body's length says."""
    features = read({"inputs": [text_input("a"), inline("x", "FP64", [3], [1, 2, 3])]})
    assert features.tensor_bytes == 24


@pytest.mark.parametrize(
    "tensor",
    [
        inline("x", "FP32", [3], [1, 2]),
        inline("input_ids", "INT32", [3], [1, 2]),
        inline("x", "BYTES", [2], ["a"]),
        inline("x", "INT31", [2**40], [1]),
        far("x", "FP32", [2], 4),
        far("x", "FP32", [2**62], 0),
        far("x", "BYTES", [3], 8),
    ],
)
def test_a_shape_that_contradicts_its_data_is_unsound(tensor):
    """Triton reserves what a shape declares, modulo 2**64, before it looks at the data."""
    body, headers = binary({"inputs": [tensor]}, bytes(8))
    with pytest.raises(UnsoundRequest) as caught:
        read(body, headers)
    assert caught.value.features is not None


@pytest.mark.parametrize(
    "tensor",
    [
        inline("x", "FP32", [2, 2], [[1, 2.5], [3, 4]]),
        inline("x", "BOOL", [0], []),
        inline("x", "INT31", [2], [1]),
        far("x", "BYTES", [2], 8),
        far("x", "INT8", [2], 0) | {"parameters": {"shared_memory_region": "r"}},
    ],
)
def test_a_shape_that_agrees_with_its_data_is_read(tensor):
    """Nested, empty, far and unknown data are no contradiction."""
    body, headers = binary({"inputs": [tensor]}, bytes(8))
    read(body, headers)


def test_of_a_cut_body_only_what_is_certain_is_unsound():
    """The data behind the cut may agree, unless the announced length cannot hold it."""
    body = json.dumps({"inputs": [inline("x", "FP32", [1000], [1] * 1000)]}).encode()[:500]
    assert read(body, complete=False).tensor_bytes == 4000
    read(body, {"content-length": "3100"}, complete=False)
    with pytest.raises(UnsoundRequest):
        read(body, {"content-length": "900"}, complete=False)
    cut_in_shape = b'{"inputs": [{"name": "x", "datatype": "FP32", "data": [1], "shape": [99, 9'
    assert read(cut_in_shape, complete=False).tensor_bytes is None


@pytest.mark.parametrize(
    "more", [{"outputs": {}}, {"id": 5}, {"parameters": []}, {"parameters": {"sequence_id": {}}}]
)
def test_an_unsound_shape_counts_whatever_else_is_wrong(more):
    """Triton may reserve the memory before it finds the other mistake."""
    with pytest.raises(UnsoundRequest):
        read({"inputs": [inline("x", "FP32", [2**40], [1])], **more})
    with pytest.raises(UnsoundRequest):
        read({"inputs": [inline("x", "FP32", [2**40], ["a"])], **more})


@pytest.mark.parametrize("key", [b"shape", b"sh\\u0061pe"])
def test_of_a_repeated_key_the_first_value_counts(key):
    """As in Triton, however the key is written; orjson keeps the last one."""
    body = b'{"inputs": [{"name": "x", "datatype": "INT8", "shape": [%s], "data": [1]}]}'
    with pytest.raises(UnsoundRequest, match="declares 1099511627776"):
        read(body.replace(b"[%s]", b'[1099511627776], "shape": [1]').replace(b"shape", key, 1))
    twice = body.replace(b"%s", b'1], "' + key + b'": [1099511627776')
    assert read(twice).tensor_bytes == 1
    assert read(twice[:-1] + b', "inputs": 5}').tensor_bytes == 1


@pytest.mark.parametrize("complete", [True, False])
def test_a_deadly_shape_does_not_hide_among_escapes_that_are_not_repaired(complete):
    """70 kB with a lone low surrogate, which Triton takes: it is not routed as unread."""
    many = ", ".join(json.dumps(inline("x", "INT32", [1], [1])) for _ in range(1100))
    deadly = json.dumps(inline("x", "INT32", [2**40], [1]))
    for escapes, words in (
        ("", "own rules" if complete else "declares"),
        ("\\\\n" * 1024, "too many escapes"),
    ):
        body = f'{{"x":"\\udc00{escapes}","inputs": [{deadly}, {many}]}}'.encode()
        assert len(body) > 65_536
        with pytest.raises(UnsoundRequest, match=words):
            read(body, {"content-length": str(len(body))}, complete=complete)


@pytest.mark.parametrize("odd", [b"NaN", b'"\xff"', b'"\\udc00"', b'1, "x": 2'])
def test_a_deadly_shape_does_not_hide_behind_what_costs_too_much(odd):
    """A whole body that the second parser does not read to its end is refused."""
    deadly = json.dumps(inline("x", "INT32", [2**40], [1])).encode()
    for fill in (b'"' + b":" * 3000 + b'"', b"[" + b"[]," * 11_000 + b"1]"):
        body = b'{"z": %s, "x": %s, "inputs": [%s]}' % (fill, odd, deadly)
        for headers in ({}, {LENGTH_HEADER: str(len(body))}):
            with pytest.raises(UnsoundRequest, match="by Triton's own rules") as error:
                read(body, headers)
            assert error.value.kind is RefusalKind.TOO_COMPLEX


def test_any_flat_numbers_of_64_kib_are_read_by_the_second_parser():
    """Clients in Python write `NaN` for what is missing."""
    numbers = b"NaN," * 2000 + b"0," * 28_000 + b"1"
    tensor = b'{"name": "x", "datatype": "FP32", "shape": [30001], "data": [%s]}' % numbers
    body = b'{"inputs": [%s], "parameters": {"sequence_id": 7}}' % tensor
    assert 63_000 < len(body) < 65_536
    made = read(body)
    assert (made.sequence_id, made.tensor_bytes, made.cut) == (7, 120_004, False)


def test_an_input_that_is_named_shape_is_no_repetition():
    """The word alone proves nothing."""
    assert read({"inputs": [inline("shape", "BYTES", [1], ["shape"])]}).tensor_bytes == 4


@pytest.mark.parametrize(
    ("datatype", "numbers", "read_as"),
    [("INT32", [2**63 - 1, -1], [2**32 - 1] * 2), ("UINT32", [2**64 - 1, 7], [2**32 - 1, 7])],
)
def test_integers_are_cut_to_their_datatype(datatype, numbers, read_as):
    """Triton keeps their lower half; an integer beyond 64 bits it rejects."""
    features = read({"inputs": [inline("input_ids", datatype, [2], numbers)]})
    assert struct.unpack("<2I", features.prompt) == tuple(read_as)
    with pytest.raises(BadRequest, match="integers of that size"):
        read({"inputs": [inline("input_ids", datatype, [2], [2**64, 1])]})


@pytest.mark.parametrize(
    "spelling", ["%d", "+%d", " \t%dabc", "%d.5", "%d,7", "000000000000000000000000%d"]
)
@pytest.mark.parametrize("above", [0, 2**32])
def test_a_length_is_read_by_atoi(spelling, above):
    """As Triton reads it, whatever follows; of two headers, joined by a comma, the first counts."""
    body = json.dumps({"id": "a", "inputs": []}).encode()
    headers = {LENGTH_HEADER: spelling % (len(body) + above)}
    assert read(body + b"\xff" * 9, headers).request_id == "a"


@pytest.mark.parametrize(
    "text", ["0", "", "x", ",5", "0x10", "-0", "4294967296", "-9223372036854775809"]
)
def test_a_length_of_zero_means_a_raw_body(text):
    """Nothing of it is JSON, so nothing is read."""
    for body in (b'{"id": "a"}', b"\xff\xfe"):
        assert read(body, {LENGTH_HEADER: text}) == HEAD


@pytest.mark.parametrize("text", ["-1", "99", "2147483648", "9223372036854775808"])
def test_a_length_beyond_the_body_is_a_mistake(text):
    """Triton's own words reach the caller."""
    with pytest.raises(BadRequest, match="but the body has only"):
        read(b'{"id": "a"}', {LENGTH_HEADER: text})


@pytest.mark.parametrize("data", [[1], ["a"], 5, "x", [[1], None]])
def test_data_of_a_tensor_without_elements_is_not_looked_at(data):
    """Neither does Triton look at it."""
    features = read({"inputs": [inline("x", "FP32", [3, 0], data)]})
    assert features.tensor_bytes == 0


def test_texts_end_at_their_first_nul():
    """Triton passes them on as C strings; a datatype that is another one would hide a shape."""
    tensor = inline("x", "INT32\0y", [2], [1, 2])
    parameters = {"sequence_id": "a\0b"}
    features = read({"id": "r\0s", "inputs": [tensor], "parameters": parameters})
    assert (features.request_id, features.sequence_id, features.tensor_bytes) == ("r", "a", 8)
    with pytest.raises(UnsoundRequest):
        read({"inputs": [inline("x", "INT32\0y", [2**40], [1])]})
