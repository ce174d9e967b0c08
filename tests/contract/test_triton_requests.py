"""Bodies that real clients wrote, and bodies that tritonclient writes now, are read as meant."""

from __future__ import annotations

import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc._utils import _get_inference_request

from ext_proc.requests import BadRequest, prompt_blocks, read_body, read_head
from ext_proc.requests.forms.http_infer import LENGTH_HEADER
from ext_proc.routing.values.request import Features

FIXTURES = Path(__file__).parent / "fixtures" / "triton-2.51.0"
GRPC = "/inference.GRPCInferenceService/ModelInfer"
INFER = "/v2/models/echo/infer"
GENERATE = "/v2/models/echo/generate"
PROMPT = b"You are a helpful assistant. Say hello to the world."
HEADERS = {LENGTH_HEADER: "145"}
RECORDED = [
    (GRPC, {}, "grpc_model_infer.bin"),
    (GRPC, {}, "grpc_model_infer_sequence_priority.bin"),
    (INFER, HEADERS, "http_infer_binary.bin"),
    (INFER, {}, "http_infer_json.json"),
    (GENERATE, {}, "http_generate.json"),
]


def read(path: str, headers: dict[str, str], body: bytes, *, complete: bool = True) -> Features:
    return read_body(read_head("POST", path, headers), headers, body, complete=complete)


def recorded(name: str) -> bytes:
    return (FIXTURES / name).read_bytes()


def frame(message) -> bytes:
    data = message.SerializeToString()
    return struct.pack(">BI", 0, len(data)) + data


def test_recorded_grpc():
    """A plain recorded ModelInfer says model, id and prompt."""
    features = read(GRPC, {}, recorded("grpc_model_infer.bin"))
    assert (features.model, features.version, features.request_id) == ("echo", None, "req-1")
    assert (features.prompt, features.prompt_is_partial) == (PROMPT, False)
    assert features.sequence is None


def test_recorded_grpc_sequence():
    """A recorded request of a sequence says all of its parameters."""
    features = read(GRPC, {}, recorded("grpc_model_infer_sequence_priority.bin"))
    assert (features.model, features.version) == ("echo", "2")
    assert (features.sequence_id, features.sequence_start, features.sequence_end) == (
        42,
        True,
        False,
    )
    assert (features.priority, features.max_tokens) == (1, 16)
    assert features.timeout_s == pytest.approx(0.005)


def test_recorded_http():
    """Recorded HTTP bodies say their prompts."""
    header = recorded("http_infer_binary.header").decode().strip()
    assert header == f"Inference-Header-Content-Length: {HEADERS[LENGTH_HEADER]}"
    assert read(INFER, HEADERS, recorded("http_infer_binary.bin")).prompt == PROMPT
    assert read(INFER, {}, recorded("http_infer_json.json")).prompt == b"hello"
    generate = read(GENERATE, {}, recorded("http_generate.json"))
    assert (generate.prompt, generate.max_tokens) == (b"hello world", 16)


def test_the_same_prompt_has_the_same_blocks_in_every_form():
    """GRPC and HTTP clients of one model share their prefixes."""
    one = read(GRPC, {}, recorded("grpc_model_infer.bin"))
    two = read(INFER, HEADERS, recorded("http_infer_binary.bin"))
    assert prompt_blocks(one, 16) == prompt_blocks(two, 16) != ()


@pytest.mark.parametrize(("path", "headers", "name"), RECORDED)
def test_every_first_part(path, headers, name):
    """Of every first part of a recorded body is read what the whole body says, or nothing."""
    body = recorded(name)
    whole = read(path, headers, body)
    for end in range(len(body) + 1):
        part = read(path, headers, body[:end], complete=False)
        for field in ("model", "version", "request_id", "sequence_id", "priority", "max_tokens"):
            assert getattr(part, field) in (None, getattr(whole, field))
        assert (whole.prompt or b"").startswith(part.prompt or b"")


@given(st.sampled_from(RECORDED), st.data(), st.booleans())
def test_mutated_bodies(case, data, complete):
    """A recorded body with any bytes changed is read or refused, and nothing else happens."""
    path, headers, name = case
    body = bytearray(recorded(name))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        features = read(path, headers, bytes(body), complete=complete)
    except BadRequest:
        return
    prompt_blocks(features, 16)


def inputs(module):
    """Return a text, tokens and an image as ``module`` (tritonclient's) writes them."""
    text = module.InferInput("text_input", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([["héllo wörld".encode()]], dtype=np.object_))
    image = module.InferInput("image", [4], "FP32")
    image.set_data_from_numpy(np.arange(4, dtype=np.float32))
    limit = module.InferInput("max_tokens", [1, 1], "INT32")
    limit.set_data_from_numpy(np.array([[77]], dtype=np.int32))
    return [image, text, limit]


OPTIONS = {
    "request_id": "id-1",
    "sequence_start": True,
    "sequence_end": True,
    "priority": 3,
    "timeout": 2_000_000,
}


def check(features: Features, sequence: int | str) -> None:
    assert (features.model, features.request_id) == ("echo", "id-1")
    assert (features.sequence_id, features.sequence_start, features.sequence_end) == (
        sequence,
        True,
        True,
    )
    assert (features.priority, features.timeout_s, features.max_tokens) == (3, 2.0, 77)
    assert (features.prompt, features.prompt_is_partial) == ("héllo wörld".encode(), False)


@pytest.mark.parametrize("sequence", [42, "forty-two"])
def test_tritonclient_grpc(sequence):
    """What tritonclient's gRPC client writes is read as it was put in."""
    message = _get_inference_request(
        model_name="echo",
        inputs=inputs(grpcclient),
        model_version="",
        outputs=None,
        sequence_id=sequence,
        parameters={"temperature": 0.5, "top": "k"},
        **OPTIONS,
    )
    check(read(GRPC, {}, frame(message)), sequence)


@pytest.mark.parametrize("sequence", [42, "forty-two"])
@pytest.mark.parametrize("binary", [True, False])
def test_tritonclient_http(sequence, binary):
    """What tritonclient's HTTP client writes, binary or JSON, is read as it was put in."""
    tensors = inputs(httpclient)
    if not binary:
        tensors[1].set_data_from_numpy(
            np.array([["héllo wörld"]], dtype=np.object_), binary_data=False
        )
        tensors[2].set_data_from_numpy(np.array([[77]], dtype=np.int32), binary_data=False)
    body, json_size = httpclient.InferenceServerClient.generate_request_body(
        tensors, sequence_id=sequence, **OPTIONS
    )
    headers = {} if json_size is None else {LENGTH_HEADER: str(json_size)}
    check(read(INFER, headers, body), sequence)


def test_tritonclient_tokens():
    """Token ids are the same prompt over gRPC and HTTP, binary and JSON."""
    prompts = []
    for module in (grpcclient, httpclient):
        tokens = module.InferInput("input_ids", [1, 3], "INT32")
        tokens.set_data_from_numpy(np.array([[5, 6, 7]], dtype=np.int32))
        if module is grpcclient:
            message = _get_inference_request(
                "echo", [tokens], "", "", None, 0, False, False, 0, None, None
            )
            prompts.append(read(GRPC, {}, frame(message)).prompt)
            continue
        body, size = module.InferenceServerClient.generate_request_body([tokens])
        prompts.append(read(INFER, {LENGTH_HEADER: str(size)}, body).prompt)
        tokens.set_data_from_numpy(np.array([[5, 6, 7]], dtype=np.int32), binary_data=False)
        body, _ = module.InferenceServerClient.generate_request_body([tokens])
        prompts.append(read(INFER, {}, body).prompt)
    assert prompts == [struct.pack("<3i", 5, 6, 7)] * 3


DATATYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "FP32": np.float32,
    "FP64": np.float64,
}
HALVES = {"FP16", "BF16"}
"""tritonclient writes them in binary only."""
SEQUENCE = {"sequence_id": 7, "sequence_start": True, "sequence_end": False, "priority": 2}


def said(features: Features) -> None:
    assert (features.sequence_id, features.sequence_start, features.priority) == (7, True, 2)
    assert (features.prompt, features.prompt_is_partial) == (PROMPT, False)


def with_prompt(module, datatype: str, **options):
    """Return a tensor of a datatype, and behind it the prompt, as ``module`` writes them."""
    tensor = module.InferInput("data", [3], datatype)
    tensor.set_data_from_numpy(np.ones(3, dtype=DATATYPES[datatype]), **options)
    prompt = module.InferInput("text_input", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([PROMPT], dtype=np.object_))
    return [tensor, prompt]


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_over_grpc(datatype):
    """A tensor of any datatype beside the prompt disturbs nothing."""
    message = _get_inference_request(
        model_name="echo",
        inputs=with_prompt(grpcclient, datatype),
        model_version="",
        request_id="",
        outputs=None,
        timeout=None,
        parameters=None,
        **SEQUENCE,
    )
    said(read(GRPC, {}, frame(message)))


@pytest.mark.parametrize(
    ("datatype", "binary"),
    [
        (name, binary)
        for name in DATATYPES
        for binary in (True, False)
        if binary or name not in HALVES
    ],
)
def test_every_datatype_over_http(datatype, binary):
    """The same over HTTP, binary and as JSON."""
    tensors = with_prompt(httpclient, datatype, binary_data=binary)
    body, size = httpclient.InferenceServerClient.generate_request_body(tensors, **SEQUENCE)
    said(read(INFER, {LENGTH_HEADER: str(size)}, body))


@pytest.mark.parametrize("datatype", ["INT32", "INT64", "UINT32", "UINT64"])
def test_token_ids_of_every_integer(datatype):
    """Token ids are read in every datatype that holds them, the same over gRPC and HTTP."""
    prompts = set()
    for module in (grpcclient, httpclient):
        tokens = module.InferInput("input_ids", [1, 3], datatype)
        tokens.set_data_from_numpy(np.array([[5, 6, 7]], dtype=DATATYPES[datatype]))
        if module is grpcclient:
            message = _get_inference_request(
                "echo", [tokens], "", "", None, 0, False, False, 0, None, None
            )
            prompts.add(read(GRPC, {}, frame(message)).prompt)
        else:
            body, size = module.InferenceServerClient.generate_request_body([tokens])
            prompts.add(read(INFER, {LENGTH_HEADER: str(size)}, body).prompt)
    assert prompts == {np.array([5, 6, 7], dtype=np.uint32).tobytes()}


def test_shared_memory_over_grpc_and_http():
    """A prompt in shared memory is unknown, and a tensor behind it keeps its data."""
    for module in (grpcclient, httpclient):
        far = module.InferInput("text_input", [1], "BYTES")
        far.set_shared_memory("region", 64)
        limit = module.InferInput("max_tokens", [1], "INT32")
        limit.set_data_from_numpy(np.array([9], dtype=np.int32))
        if module is grpcclient:
            message = _get_inference_request(
                "echo", [far, limit], "", "", None, 0, False, False, 0, None, None
            )
            features = read(GRPC, {}, frame(message))
        else:
            body, size = module.InferenceServerClient.generate_request_body([far, limit])
            features = read(INFER, {LENGTH_HEADER: str(size)}, body)
        assert (features.prompt, features.max_tokens) == (None, 9)
