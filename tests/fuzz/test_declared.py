"""Declared shapes against data: the stored corpus, and Hypothesis."""

from __future__ import annotations

import json

from fuzz.corpus import inputs
from fuzz.declared import one_request
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from ext_proc.requests.parsing.shapes import WIDTHS

CASES = inputs("declared")
NAMES = st.sampled_from(["text_input", "input_ids", "max_tokens", "sampling_parameters", "x"])
DATATYPES = st.sampled_from([*WIDTHS, "ODD"])
SIZES = st.sampled_from([0, 1, 2, 3, 127, 128, 2**31, 2**62, -1])
SHAPES = st.lists(SIZES, max_size=4)
ELEMENTS = st.sampled_from([0, 1, -1, 2**63, 1.5, "a", "", True, None, {}])
DATA = st.recursive(
    st.lists(ELEMENTS, max_size=3), lambda inner: st.lists(inner | ELEMENTS, max_size=3)
)


@st.composite
def documents(draw) -> bytes:
    """Draw the JSON of a request, most of whose inputs are sound."""
    made = []
    for _ in range(draw(st.integers(0, 3))):
        each = {"name": draw(NAMES), "datatype": draw(DATATYPES), "shape": draw(SHAPES)}
        if draw(st.booleans()):
            element = draw(ELEMENTS)
            count = draw(st.integers(0, 70))
            each |= {"shape": [count], "data": [element] * count}
        elif draw(st.booleans()):
            each["data"] = draw(DATA)
        else:
            size = draw(st.integers(0, 3)) * WIDTHS.get(each["datatype"], 1)
            each["parameters"] = {"binary_data_size": size}
        order = draw(st.permutations(sorted(each)))
        made.append({name: each[name] for name in order})
    more = draw(st.sampled_from([{}, {"id": 5}, {"id": "a"}, {"outputs": [{"name": "y"}]}]))
    return json.dumps({"inputs": made, **more}).encode()


@st.composite
def messages(draw) -> bytes:
    """Draw a ``ModelInferRequest``, most of whose inputs are sound."""
    message = service_pb2.ModelInferRequest(model_name="m")
    for _ in range(draw(st.integers(0, 3))):
        made = message.inputs.add(name=draw(NAMES), datatype=draw(DATATYPES), shape=draw(SHAPES))
        if draw(st.booleans()):
            del made.shape[:]
            made.shape.append(count := draw(st.integers(0, 5)))
            message.raw_input_contents.append(bytes(count * WIDTHS.get(made.datatype, 1)))
        elif draw(st.booleans()):
            made.contents.int_contents.extend([1] * draw(st.integers(0, 3)))
        else:
            message.raw_input_contents.append(draw(st.binary(max_size=8)))
    odd = draw(st.sampled_from([b"", b"\x18\x07", b"\x19" + bytes(8), b"\x38\x01"]))
    return message.SerializeToString() + odd


def test_the_corpus():
    """Each stored request keeps every rule."""
    assert len(CASES) > 20
    for case in CASES:
        try:
            one_request(case.data)
        except Exception as error:
            raise AssertionError(case.name) from error


@given(st.binary(min_size=3, max_size=200))
def test_any_bytes(data):
    """Nothing but a refusal, and that in time."""
    one_request(data)


@given(st.integers(0, 255), documents(), st.binary(max_size=30))
def test_requests_over_http(cut, document, blob):
    """JSON with and without a binary part."""
    one_request(bytes([1, cut, 255]) + document)
    body = document + blob
    for length in {len(document) * 254 // len(body), -(-len(document) * 254 // len(body))}:
        one_request(bytes([1, cut, length]) + body)


@given(st.integers(0, 255), messages())
def test_requests_over_grpc(cut, message):
    """Messages with raw and typed contents, and fields of wrong kinds."""
    one_request(bytes([0, cut, 0]) + message)


@given(st.sampled_from(CASES), st.data())
def test_bent_requests(case, data):
    """Stored requests with changed bytes."""
    bent = bytearray(case.data)
    for _ in range(data.draw(st.integers(1, 4))):
        bent[data.draw(st.integers(1, len(bent) - 1))] = data.draw(st.integers(0, 255))
    one_request(bytes(bent))
