"""Framed ModelInferRequests, written by the real protobuf classes."""

from __future__ import annotations

import gzip
import struct
import zlib

import pytest
from tritonclient.grpc import service_pb2

from ext_proc.requests.forms import grpc_infer
from ext_proc.requests.forms.grpc_infer import (
    MAX_INPUTS,
    MAX_PARAMETERS,
    read_grpc,
    read_model_call,
)
from ext_proc.requests.parsing.budget import MAX_REWRITTEN
from ext_proc.requests.parsing.errors import BadRequest, Malformed, UnsoundRequest
from ext_proc.routing.values.request import Features, Form
from support.infer_requests import HEAD, frame, read, request, tensor


def elements(*texts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def test_identity():
    """Model, version and id are read; empty ones are unknown."""
    features = read(request(model_version="3", id="r"))
    assert (features.model, features.version, features.request_id) == ("m", "3", "r")
    empty = read(service_pb2.ModelInferRequest())
    assert (empty.model, empty.version, empty.request_id) == (None, None, None)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int64_param", 7, 7),
        ("int64_param", -7, 2**64 - 7),
        ("uint64_param", 2**64 - 1, 2**64 - 1),
        ("string_param", "7", "7"),
        ("int64_param", 0, None),
        ("string_param", "", None),
        ("string_param", "a\0b", "a"),
        ("string_param", "\0", None),
    ],
)
def test_sequence_id(kind, value, expected):
    """A sequence id keeps its type; 0 and the empty text mean none.

    Triton keeps an integer without its sign, and a text up to its first NUL.
    """
    message = request()
    setattr(message.parameters["sequence_id"], kind, value)
    assert read(message).sequence_id == expected


def test_of_several_names_the_last_counts():
    """However long those before it are; protobuf keeps the last."""
    long = service_pb2.ModelInferRequest(model_name="x" * 300).SerializeToString()
    last = service_pb2.ModelInferRequest(model_name="m").SerializeToString()
    assert read(frame(long + last)).model == "m"
    with pytest.raises(BadRequest, match="model_name has 300 characters"):
        read(frame(last + long))


def test_parameters():
    """Sequence flags, priority, timeout, limit and adapter are read, the rest is passed."""
    message = request()
    message.parameters["sequence_start"].bool_param = True
    message.parameters["sequence_end"].bool_param = True
    message.parameters["priority"].uint64_param = 2
    message.parameters["timeout"].int64_param = 1_500_000
    message.parameters["max_tokens"].int64_param = 9
    message.parameters["lora_name"].string_param = "a"
    message.parameters["temperature"].double_param = 0.5
    features = read(message, head=Features(Form.GRPC_INFER, timeout_s=9.0))
    assert features.sequence_start
    assert features.sequence_end
    assert (features.priority, features.timeout_s) == (2, 1.5)
    assert (features.max_tokens, features.adapter) == (9, "a")


def test_sequence_of_a_wrong_type_is_refused():
    """A sequence id that is neither an integer nor a text is a clear error."""
    message = request()
    message.parameters["sequence_id"].bool_param = True
    with pytest.raises(BadRequest, match="sequence_id must be an integer or a string"):
        read(message)


def test_raw_contents_skip_inputs_in_shared_memory():
    """The k-th raw content is of the k-th input outside shared memory."""
    shared = tensor("prompt", "BYTES")
    shared.parameters["shared_memory_region"].string_param = "r"
    message = request(
        inputs=[tensor("image", "FP32", shape=[2]), shared, tensor("text_input", "BYTES")],
        raw_input_contents=[b"\0" * 8, elements(b"hello")],
    )
    assert read(message).prompt == b"hello"


def test_typed_contents():
    """Texts, tokens and limits may be written as typed contents."""
    contents = service_pb2.InferTensorContents
    message = request(
        inputs=[
            tensor("QUERY", "BYTES", contents=contents(bytes_contents=[b"a", b"b"])),
            tensor("max_tokens", "INT32", contents=contents(int_contents=[5])),
            tensor("lora_task_id", "UINT64", contents=contents(uint64_contents=[2**64 - 1])),
            tensor("input_ids", "FP32", contents=contents(fp32_contents=[1.0])),
        ]
    )
    features = read(message)
    assert (features.prompt, features.max_tokens) == (b"a\0b", 5)
    assert features.adapter == str(2**64 - 1)
    assert not features.prompt_is_partial


def test_typed_token_bound(monkeypatch):
    """Typed integers beyond the bound are not read, and the prompt is marked partial."""
    monkeypatch.setattr(grpc_infer, "MAX_PACKED", 2)
    contents = service_pb2.InferTensorContents(int64_contents=[1, 2, 3])
    features = read(request(inputs=[tensor("input_ids", "INT64", contents=contents)]))
    assert features.prompt == struct.pack("<2I", 1, 2)
    assert features.prompt_is_partial
    assert features.token_ids


def test_of_an_integer_that_does_not_fit_the_low_bits_count():
    """As protobuf reads a field of 32 bits."""
    contents = service_pb2.InferTensorContents(int64_contents=[2**40 + 5])
    data = tensor("input_ids", "INT64", contents=contents).SerializeToString()
    wide = data.replace(b"INT64", b"INT32").replace(b"\x1a\x06", b"\x12\x06")
    message = b"\x0a\x01m\x2a" + bytes([len(wide)]) + wide
    assert read(frame(message)).prompt == struct.pack("<I", 5)


@pytest.mark.parametrize("version", ["1", "01", " 1", "\t+1", "1x", "1.5", "1\0"])
def test_names_are_read_as_c_reads_them(version):
    """Triton ends texts at the first NUL, and gets the version by ``std::stol``."""
    message = service_pb2.ModelInferRequest(model_name="m\0x", model_version=version, id="r\0x")
    message.inputs.append(tensor("x", "INT32\0x"))
    message.raw_input_contents.append(bytes(4))
    made = read(message)
    assert (made.model, made.version, made.request_id, made.tensor_bytes) == ("m", "1", "r", 4)


@pytest.mark.parametrize("version", ["x", "-1", "99999999999999999999"])
def test_a_version_that_is_none_stays(version):
    """Triton rejects it."""
    assert read(request(model_version=version)).version == version


@pytest.mark.parametrize("headers", [{}, {"grpc-encoding": "identity"}])
def test_a_flag_without_an_encoding_means_nothing(headers):
    """The servers of gRPC read such a message as it is."""
    assert read(frame(request(), flag=1), headers).model == "m"


def test_truncation():
    """Every first part of a message yields only features of the whole message."""
    message = request(
        model_version="2",
        inputs=[tensor("text_input", "BYTES")],
        raw_input_contents=[elements(b"hello world")],
    )
    message.parameters["sequence_id"].string_param = "abcdef"
    body = frame(message)
    for end in range(len(body)):
        features = read(body[:end], complete=False)
        assert features.model in (None, "m")
        assert features.version in (None, "2")
        assert features.sequence_id in (None, "abcdef")
        assert b"hello world".startswith(features.prompt or b"")
    assert read(body[:-3], complete=False).prompt_is_partial
    assert read(body[:-3], complete=False).prompt == b"hello wo"
    assert read(body[:2], complete=False) == HEAD


@pytest.mark.parametrize(
    ("coding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_compressed(coding, compress):
    """A compressed message is read, and its first part too."""
    message = request(
        inputs=[tensor("text_input", "BYTES")], raw_input_contents=[elements(b"hello" * 100)]
    )
    body = frame(compress(message.SerializeToString()), flag=1)
    headers = {"grpc-encoding": coding}
    assert read(body, headers).prompt == b"hello" * 100
    assert read(body[: len(body) // 2], headers, complete=False).model in (None, "m")


def test_unknown_compression_says_nothing():
    """A message in another coding leaves everything unknown."""
    assert read(frame(b"xyz", flag=1), {"grpc-encoding": "snappy"}) == HEAD


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no gRPC message"),
        (b"\0\0\0\0", "no gRPC message"),
        (b"\x02\0\0\0\0", "compressed flag 2"),
        (b"\0\0\0\0\x05ab", "declares 5 bytes, but 2 follow"),
        (frame(b"\x0a\x01\xff"), "UTF-8"),
        (frame(b"\x0a\xad\x02" + b"m" * 301), "at most 256"),
        (frame(b"\x0a\xb1\x08" + b"m" * 1073), "at most 256"),
    ],
)
def test_bad_frames(body, words):
    """Each kind of damage has its own clear error."""
    with pytest.raises(BadRequest, match=words):
        read(body)


def test_no_message_at_all_is_malformed():
    """Triton answers INTERNAL for it, as for bytes that are no message."""
    with pytest.raises(Malformed):
        read(b"")


def test_bounds():
    """Parameters and inputs beyond their bounds are refused."""
    message = request()
    for index in range(MAX_PARAMETERS + 1):
        message.parameters[str(index)].bool_param = True
    with pytest.raises(BadRequest, match="more than 256 parameters"):
        read(message)
    with pytest.raises(BadRequest, match="more than 800 inputs"):
        read(frame(b"\x2a\x00" * (MAX_INPUTS + 1)))


def test_a_large_tensor_is_not_copied():
    """The model of a 20 MB request is read without touching the tensor."""
    message = request(inputs=[tensor("image", "FP32", shape=[5 * 2**20])])
    head = message.SerializeToString() + b"\x3a" + b"\x80\x80\x80\x0a"
    body = bytearray(struct.pack(">BI", 0, len(head) + 20 * 2**20) + head + bytes(20 * 2**20))
    assert read_grpc(HEAD.changed(), {}, memoryview(body), complete=True).model == "m"


def test_typed_text_bound():
    """Texts of a typed tensor beyond the bound are not read, and the request still is."""
    texts = service_pb2.InferTensorContents(bytes_contents=[b"a"] * 9000)
    features = read(request(inputs=[tensor("prompt", "BYTES", contents=texts)]))
    assert features.model == "m"
    assert features.prompt == b"\0".join([b"a"] * grpc_infer.MAX_TYPED_PARTS)
    assert features.prompt_is_partial


def test_the_first_input_of_a_name_counts():
    """If an input is given twice, the first is read."""
    twice = [tensor("prompt", "BYTES"), tensor("prompt", "BYTES")]
    message = request(inputs=twice, raw_input_contents=[elements(b"one"), elements(b"two")])
    assert read(message).prompt == b"one"


def test_wrong_kinds_inside_tensors_are_skipped():
    """Protobuf takes fields of another type than the declared one for unknown ones."""
    wrong = b"\x0a\x06prompt\x12\x05BYTES"
    raw = frame(b"\x2a\x0f" + wrong + b"\x38\x01" + b"\x3a\x05\x01\0\0\0a")
    assert read(raw).prompt == b"a"
    typed = frame(b"\x2a\x16" + wrong + b"\x2a\x05\x40\x01\x42\x01a")
    assert read(typed).prompt == b"a"


CALLS = [
    service_pb2.ModelReadyRequest,
    service_pb2.ModelMetadataRequest,
    service_pb2.ModelConfigRequest,
    service_pb2.ModelStatisticsRequest,
]
CALL = Features(Form.MODEL_CALL)


@pytest.mark.parametrize("kind", CALLS)
def test_model_call(kind):
    """All calls about a model name it and its version."""
    features = read_model_call(
        CALL.changed(), {}, frame(kind(name="m", version="2")), complete=True
    )
    assert (features.model, features.version, features.is_inference) == ("m", "2", False)


def test_model_call_about_no_model():
    """Statistics may be requested for all models."""
    empty = frame(service_pb2.ModelStatisticsRequest())
    assert read_model_call(CALL.changed(), {}, empty, complete=True) == CALL


def test_unreadable_model_call():
    """A call about a model whose name is not text is refused; an unknown coding yields nothing."""
    with pytest.raises(BadRequest, match="UTF-8"):
        read_model_call(CALL.changed(), {}, frame(b"\x0a\x01\xff"), complete=True)
    headers = {"grpc-encoding": "snappy"}
    assert read_model_call(CALL.changed(), headers, frame(b"x", flag=1), complete=True) == CALL


GROUP = b"\xfb\x01\x08\x01\xfc\x01"
ENTRY = b"\x0a\x0bsequence_id"


@pytest.mark.parametrize(
    "more",
    [
        GROUP,
        b"\x08\x01",
        b"\x22\x04\x0a\x02\x10\x09" + GROUP,
        b"\x22" + bytes([21]) + ENTRY + b"\x12\x02\x10\x07\x12\x02\x7a\x00",
        b"\x22" + bytes([20]) + ENTRY + b"\x12\x02\x10\x07\x7a\x01x" + GROUP,
        b"\x22" + bytes([17]) + ENTRY + b"\x12\x02\x10\x09"
        b"\x22" + bytes([19]) + ENTRY + b"\x12\x02\x10\x07\x12\x00",
    ],
)
def test_what_is_unusual_protobuf_reads(more):
    """Groups and fields of another type are skipped, messages that are there twice merge."""
    message = request(inputs=[tensor("prompt", "BYTES")], raw_input_contents=[elements(b"one")])
    message.parameters["sequence_id"].int64_param = 7
    for body in (message.SerializeToString() + more, GROUP + message.SerializeToString() + more):
        features = read(frame(body), head=Features(Form.GRPC_INFER, timeout_s=9.0))
        assert (features.model, features.sequence_id, features.prompt) == ("m", 7, b"one")
        assert (features.timeout_s, features.cut) == (9.0, False)


def test_what_is_unusual_and_cut_is_beyond_the_bound():
    """Protobuf reads whole messages only."""
    body = frame(GROUP + request(raw_input_contents=[bytes(500)]).SerializeToString())
    assert read(body[:-1], complete=False).cut
    long = frame(GROUP + request(raw_input_contents=[bytes(MAX_REWRITTEN)]).SerializeToString())
    assert read(long).cut


@pytest.mark.parametrize("more", [b"\xfb\x01\x08\x01", b"\x1a\x01\xff", b"\x32\x03\x0a\x01\xff"])
def test_what_protobuf_rejects_is_no_message(more):
    """An open group, and texts that are no UTF-8, also in fields that are not read here."""
    body = frame(request().SerializeToString() + more + b"\x08\x01")
    with pytest.raises(Malformed):
        read(body)


def test_a_field_of_a_wrong_type_is_no_input():
    """Protobuf skips it, so the raw contents belong to the others."""
    message = request(inputs=[tensor("x", "UINT8"), tensor("y", "UINT16")])
    message.raw_input_contents.extend([b"1", b"22"])
    assert read(frame(b"\x28\x01" + message.SerializeToString())).tensor_bytes == 2
    message.raw_input_contents[1] = b"1"
    with pytest.raises(UnsoundRequest):
        read(frame(b"\x28\x01" + message.SerializeToString()))


def test_contents_that_are_there_twice_are_joined():
    """A shape is compared with both parts."""
    part = service_pb2.InferTensorContents(int_contents=[1, 2])
    item = tensor("input_ids", "INT32", shape=[4], contents=part).SerializeToString()
    twice = item + b"\x2a" + bytes([part.ByteSize()]) + part.SerializeToString()
    body = request().SerializeToString() + b"\x2a" + bytes([len(twice)]) + twice
    assert read(frame(body)).prompt == struct.pack("<4I", 1, 2, 1, 2)
