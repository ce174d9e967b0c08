"""Shapes in ModelInferRequests that contradict the data, or are too large."""

from __future__ import annotations

import pytest
from tritonclient.grpc import service_pb2

from ext_proc.requests.parsing.budget import MAX_LONG_DIMENSIONS
from ext_proc.requests.parsing.errors import BadRequest, UnsoundRequest
from support.infer_requests import frame, read, request, tensor


@pytest.mark.parametrize(
    ("shape", "datatype", "raw"),
    [
        ([2], "INT32", bytes(4)),
        ([1], "INT32", bytes(5)),
        ([2**62], "INT32", b""),
        ([2**62 + 1], "INT32", bytes(4)),
        ([2**40, 2**40], "INT8", bytes(4)),
        ([200], "BYTES", bytes(4)),
    ],
)
def test_a_shape_that_contradicts_its_raw_data_is_unsound(shape, datatype, raw):
    """A size that is equal only modulo 2**64 ends a backend's process."""
    message = request(inputs=[tensor("x", datatype, shape=shape)], raw_input_contents=[raw])
    with pytest.raises(UnsoundRequest):
        read(message)


@pytest.mark.parametrize("shape", [[0, 2**32, 2**31], [2**40, 2**40, 0], [127] * 12 + [0]])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_dimension_of_0_hides_no_overflow(shape, parts):
    """Neither in one packed field nor in several, before and behind the others."""
    cuts = [shape[index::parts] for index in range(parts)]
    pieces = [tensor("x", "FP32", shape=each).SerializeToString() for each in cuts]
    message = service_pb2.ModelInferRequest(raw_input_contents=[b""]).SerializeToString()
    item = b"".join(pieces)
    with pytest.raises(UnsoundRequest):
        read(frame(b"\x2a" + bytes([len(item)]) + item + message))


def test_the_shape_of_one_input_is_not_that_of_the_next():
    """A dimension of 0 counts for its own input."""
    inputs = [tensor("x", "FP32", shape=[0, 5]), tensor("y", "FP32", shape=[2, 3])]
    message = request(inputs=inputs, raw_input_contents=[b"", bytes(24)])
    assert read(message).tensor_bytes == 24


def test_more_elements_than_bytes_of_typed_contents_are_unsound():
    """Each element takes at least a byte."""
    contents = service_pb2.InferTensorContents(fp32_contents=[1.0])
    message = request(inputs=[tensor("x", "FP32", shape=[2**40], contents=contents)])
    with pytest.raises(UnsoundRequest) as caught:
        read(message)
    assert caught.value.features.model == "m"


@pytest.mark.parametrize(
    "shape",
    [
        tag * 300
        for tag in (
            b"\x18" + b"\xff" * 8 + b"\x3f",  # 2**62 - 1, not packed
            b"\x1a\x09" + b"\xff" * 8 + b"\x3f",  # the same, packed
            b"\x1a\x10" + b"\x7f" * 16,  # 127**16
        )
    ],
)
def test_a_shape_in_parts_is_unsound_as_soon_as_it_is_too_large(shape):
    """Its product is no long number, which would take long and could not be printed."""
    item = b"\x0a\x01x\x12\x04INT8" + shape
    content = b"\x2a" + bytes([len(item) & 0x7F | 0x80, len(item) >> 7]) + item
    with pytest.raises(UnsoundRequest, match="more than 9223372036854775807 elements"):
        read(frame(content))


@pytest.mark.parametrize("inputs", [1, 4])
def test_the_dimensions_of_a_request_are_bounded(inputs):
    """They are counted over all inputs: 4 million took seconds."""
    of_each = MAX_LONG_DIMENSIONS // inputs
    read(request(inputs=[tensor("x", "INT8", shape=[1] * of_each)] * inputs))
    with pytest.raises(UnsoundRequest, match="too many dimensions"):
        read(request(inputs=[tensor("x", "INT8", shape=[1] * (of_each + 1))] * inputs))


@pytest.mark.parametrize("more", [b"\x18\x07", b"\x3d1234", b"\x18\x07" * 300])
def test_an_unsound_shape_counts_whatever_else_is_wrong(more):
    """Here the id is a number: protobuf skips that, so Triton reads the shapes."""
    large, small = tensor("x", "INT32", shape=[2**62]), tensor("x", "INT32", shape=[2])
    tensors = request(inputs=[large], raw_input_contents=[b""]).SerializeToString()
    with pytest.raises(UnsoundRequest, match="declares"):
        read(frame(tensors + more))
    tensors = request(inputs=[small], raw_input_contents=[bytes(8)]).SerializeToString()
    assert read(frame(tensors + more)).tensor_bytes == 8


def test_empty_contents_beside_raw_ones_are_no_contradiction_before_the_cut():
    """Some clients write both; the raw ones may follow behind what was read."""
    contents = service_pb2.InferTensorContents()
    item = tensor("x", "INT32", shape=[2], contents=contents)
    whole = frame(request(inputs=[item], raw_input_contents=[bytes(8)]))
    assert read(whole).tensor_bytes == read(whole[:-10], complete=False).tensor_bytes == 8
    with pytest.raises(UnsoundRequest):
        read(request(inputs=[item]))


def test_a_shape_of_a_wrong_kind_is_skipped():
    """So does protobuf: a fixed field of zeros does not make a huge shape an empty one."""
    item = tensor("x", "INT32", shape=[2**62]).SerializeToString() + b"\x19" + bytes(8)
    content = b"\x2a" + bytes([len(item)]) + item + b"\x3a\0"
    with pytest.raises(UnsoundRequest, match="4611686018427387904 elements"):
        read(frame(content))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ([-1], "at least 0"),
        ([-(2**63), 0], "negative dimension"),
        ([-2], "negative dimension"),
        ([3, -5], "negative dimension"),
    ],
)
def test_a_dimension_below_minus_1_is_unsound(shape, words):
    """Triton 2.51 rejects -1, and multiplies the others: [-2**63, 0] of BYTES ended a process."""
    message = request(inputs=[tensor("x", "BYTES", shape=shape)], raw_input_contents=[b""])
    with pytest.raises(BadRequest, match=words) as caught:
        read(message)
    assert isinstance(caught.value, UnsoundRequest) == (shape != [-1])


@pytest.mark.parametrize("order", [1, -1])
def test_of_every_first_part_nothing_is_unsound(order):
    """A cut message contradicts nothing, in whatever order its fields are."""
    tensors = request(inputs=[tensor("x", "INT32", shape=[2, 300])]).SerializeToString()
    blob = service_pb2.ModelInferRequest(raw_input_contents=[bytes(2400)]).SerializeToString()
    body = frame(b"".join([tensors, blob][::order]))
    assert read(body).tensor_bytes == 2400
    for end in range(len(body)):
        read(body[:end], complete=False)
