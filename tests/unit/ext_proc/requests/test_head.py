"""Method, path and headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.requests.reading import MAX_PATH_CHARS, read_head
from ext_proc.routing.values.request import Form

GRPC = "/inference.GRPCInferenceService/"


@pytest.mark.parametrize(
    ("path", "form", "model", "version"),
    [
        (GRPC + "ModelInfer", Form.GRPC_INFER, None, None),
        (GRPC + "ModelStreamInfer", Form.GRPC_STREAM, None, None),
        (GRPC + "ModelReady", Form.MODEL_CALL, None, None),
        (GRPC + "ModelMetadata", Form.MODEL_CALL, None, None),
        (GRPC + "ModelConfig", Form.MODEL_CALL, None, None),
        (GRPC + "ModelStatistics", Form.MODEL_CALL, None, None),
        (GRPC + "ServerReady", Form.OTHER, None, None),
        (GRPC + "RepositoryModelLoad", Form.OTHER, None, None),
        ("/v2/models/m/infer", Form.HTTP_INFER, "m", None),
        ("/v2/models/m/versions/3/infer", Form.HTTP_INFER, "m", "3"),
        ("/v2/models/m/versions/003/infer", Form.HTTP_INFER, "m", "3"),
        (f"/v2/models/m/versions/{'0' * 30}3/infer", Form.HTTP_INFER, "m", "3"),
        (f"/v2/models/m/versions/{2**63}/infer", Form.HTTP_INFER, "m", str(2**63)),
        ("/v2/models/m/generate", Form.GENERATE, "m", None),
        ("/v2/models/m/versions/12/generate_stream?x=1", Form.GENERATE_STREAM, "m", "12"),
        ("/v2/models/a%20b%2Fc/infer", Form.HTTP_INFER, "a b/c", None),
        ("/v2/models/stats/infer", Form.HTTP_INFER, "stats", None),
        ("/v2/models/stats", Form.OTHER, None, None),
        ("/v2/models/m/config", Form.OTHER, "m", None),
        ("/v2/models/m/versions/x/infer", Form.OTHER, None, None),
        ("/v2/models//infer", Form.OTHER, None, None),
        ("/v2/repository/models/m/load", Form.OTHER, None, None),
        ("/v2/health/ready", Form.OTHER, None, None),
        ("/v1/completions", Form.OPENAI, None, None),
        ("/any/v1/chat/completions?a=b", Form.OPENAI, None, None),
        ("/v1/embeddings", Form.OPENAI, None, None),
        ("/v1/responses", Form.RESPONSES, None, None),
        ("/v1/responses/resp_1/cancel", Form.OTHER, None, None),
        ("/any/v1/messages?beta=true", Form.MESSAGES, None, None),
        ("/v1/messages/count_tokens", Form.OTHER, None, None),
        ("/v1/rerank", Form.SCORE, None, None),
        ("/v2/rerank", Form.SCORE, None, None),
        ("/score", Form.SCORE, None, None),
        ("/any/score", Form.OTHER, None, None),
        ("/generate", Form.SGLANG, None, None),
        ("/any/generate", Form.OTHER, None, None),
        ("/v1/models", Form.OTHER, None, None),
        ("/" + "a" * MAX_PATH_CHARS, Form.OTHER, None, None),
    ],
)
def test_path(path, form, model, version):
    """A path yields form, model and version."""
    features = read_head("POST", path, {})
    assert (features.form, features.model, features.version) == (form, model, version)


@pytest.mark.parametrize("path", ["/v2/models/m/infer", "/v1/completions", GRPC + "ModelInfer"])
def test_get_is_no_inference(path):
    """Only POST is an inference."""
    assert read_head("GET", path, {}).form is Form.OTHER


def test_control_headers():
    """Pool, model and sequence may be named by headers."""
    headers = {"tidegate-pool": "p", "tidegate-model": "m", "tidegate-sequence-id": "abc"}
    features = read_head("POST", GRPC + "ModelStreamInfer", headers)
    assert (features.pool, features.model, features.sequence_id) == ("p", "m", "abc")
    assert features.streaming


def test_path_wins_over_the_model_header():
    """The model in the path is the one that the replica runs."""
    features = read_head("POST", "/v2/models/path/infer", {"tidegate-model": "header"})
    assert features.model == "path"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("7", 7), ("0", None), ("", None), ("x7", "x7"), ("-1", "-1"), ("9" * 30, "9" * 30)],
)
def test_sequence_header(text, expected):
    """A sequence header is an unsigned integer or else a text, as Triton reads JSON."""
    headers = {"tidegate-sequence-id": text}
    assert read_head("POST", "/v2/models/m/infer", headers).sequence_id == expected


def test_overlong_names_are_unknown():
    """A header beyond the bound of names is ignored."""
    features = read_head("POST", "/v1/completions", {"tidegate-model": "m" * 257})
    assert features.model is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1H", 3600), ("2M", 120), ("3S", 3), ("4m", 0.004), ("5u", 5e-6), ("6n", 6e-9)],
)
def test_grpc_timeout(text, expected):
    """Every unit of ``grpc-timeout`` becomes seconds."""
    features = read_head("POST", GRPC + "ModelInfer", {"grpc-timeout": text})
    assert features.timeout_s == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "1", "S", "123456789S", "-1S", "1.5S"])
def test_bad_grpc_timeout_is_unknown(text):
    """A timeout that gRPC does not define is unknown."""
    assert read_head("POST", GRPC + "ModelInfer", {"grpc-timeout": text}).timeout_s is None


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"tidegate-timeout-ms": "250"}, 0.25),
        ({"tidegate-timeout-ms": "250", "grpc-timeout": "1S"}, 0.25),
        ({"tidegate-timeout-ms": "2500", "grpc-timeout": "1S"}, 1.0),
        ({"tidegate-timeout-ms": "0"}, None),
        ({"tidegate-timeout-ms": "-1"}, None),
        ({"tidegate-timeout-ms": "1.5"}, None),
        ({"tidegate-timeout-ms": "9" * 13}, None),
        ({"tidegate-timeout-ms": "x", "grpc-timeout": "1S"}, 1.0),
    ],
)
def test_timeout_header(headers, expected):
    """Our own header is in milliseconds; the sooner of two deadlines is used."""
    assert read_head("POST", "/v1/completions", headers).timeout_s == expected


def test_request_id_header():
    """A header names the request until its body names it."""
    assert read_head("POST", "/v1/completions", {"x-request-id": "r"}).request_id == "r"


@given(st.text(), st.text(), st.dictionaries(st.sampled_from(["tidegate-model"]), st.text()))
def test_never_raises(method, path, headers):
    """Reading any headers never raises."""
    read_head(method, path, headers)
    read_head("POST", "/v2/models/" + path, headers)
