"""The table of ``docs/reference/requests.md`` says what is really read of each form."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2

from ext_proc.requests import read_body, read_head, session_of, split_adapter
from ext_proc.routing.values.request import Form
from tidegate_api.names import POLICY_HEADER

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "requests.md"
SERVICE = "/inference.GRPCInferenceService/"
MODEL = "/v2/models/m/versions/3/"
COLUMNS = {
    "model": "model",
    "version": "version",
    "request id": "request_id",
    "sequence": "sequence_id",
    "session": "session",
    "adapter": "adapter",
    "cache salt": "salt",
    "priority": "priority",
    "deadline": "timeout_s",
    "streamed": "streaming",
    "max tokens": "max_tokens",
    "prompt": "prompt",
}
PARAMETERS = {
    "sequence_id": 5,
    "sequence_start": True,
    "priority": 2,
    "timeout": 1000,
    "max_tokens": 9,
    "lora_name": "a",
    "cache_salt": "s",
    "user": "u",
}
BODY = {
    **PARAMETERS,
    "id": "r",
    "model": "m:a",
    "version": "3",
    "prompt": "p",
    "text_input": "p",
    "messages": [{"role": "user", "content": "p"}],
    "input": "p",
    "stream": True,
    "rid": "r",
    "text": "p",
    "query": "p",
    "documents": ["p"],
    "max_output_tokens": 9,
    "lora_path": "a",
    "sampling_params": {"max_new_tokens": 9},
    "session_params": {"id": "u"},
    "metadata": {"user_id": "u"},
    "parameters": PARAMETERS,
    "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["p"]}],
}


def grpc_infer() -> bytes:
    message = service_pb2.ModelInferRequest(model_name="m", model_version="3", id="r")
    message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    message.raw_input_contents.append(b"\1\0\0\0p")
    for name, value in PARAMETERS.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(message.parameters[name], kind, value)
    return framed(message)


def framed(message) -> bytes:
    data = message.SerializeToString()
    return struct.pack(">BI", 0, len(data)) + data


FORMS = {
    Form.GRPC_INFER: (SERVICE + "ModelInfer", grpc_infer()),
    Form.GRPC_STREAM: (SERVICE + "ModelStreamInfer", grpc_infer()),
    Form.MODEL_CALL: (
        SERVICE + "ModelConfig",
        framed(service_pb2.ModelConfigRequest(name="m", version="3")),
    ),
    Form.HTTP_INFER: (MODEL + "infer", json.dumps(BODY).encode()),
    Form.GENERATE: (MODEL + "generate", json.dumps(BODY).encode()),
    Form.GENERATE_STREAM: (MODEL + "generate_stream", json.dumps(BODY).encode()),
    Form.OPENAI: ("/v1/chat/completions", json.dumps(BODY).encode()),
    Form.RESPONSES: ("/v1/responses", json.dumps(BODY).encode()),
    Form.MESSAGES: ("/v1/messages", json.dumps(BODY).encode()),
    Form.SCORE: ("/v1/rerank", json.dumps(BODY).encode()),
    Form.SGLANG: ("/generate", json.dumps(BODY).encode()),
    Form.OTHER: (MODEL + "config", json.dumps(BODY).encode()),
}


def rows(first: str) -> dict[str, dict[str, str]]:
    """Return the table whose first column has this title, by its first cells."""
    table: dict[str, dict[str, str]] = {}
    titles: list[str] = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if cells[0] == first:
            titles = cells
        elif not line.startswith("|"):
            titles = []
        elif titles and not cells[0].startswith("-"):
            table[cells[0].strip("`")] = dict(zip(titles, cells, strict=True))
    return table


def test_every_form_has_its_row():
    """The table names each form once, and nothing else."""
    assert set(rows("form")) == set(Form) == set(FORMS)


@pytest.mark.parametrize("form", Form)
def test_what_a_form_yields(form):
    """A request that says everything yields what the row says, and nothing that it does not."""
    path, body = FORMS[form]
    features = read_body(read_head("POST", path, {}), {}, body, complete=True)
    features = split_adapter(features, {"m"})
    assert features.form is form
    row = rows("form")[form]
    for title, name in COLUMNS.items():
        known = getattr(features, name) not in (None, False)
        assert known == (row[title] != "-"), f"{form}: {title}"


def test_headers():
    """Each documented header is read, in every form."""
    headers = {
        "tidegate-pool": ("p", "pool", "p"),
        "tidegate-model": ("m", "model", "m"),
        "tidegate-sequence-id": ("7", "sequence_id", 7),
        "tidegate-timeout-ms": ("1500", "timeout_s", 1.5),
        "grpc-timeout": ("2S", "timeout_s", 2.0),
        "x-request-id": ("r", "request_id", "r"),
    }
    assert set(rows("header")) == {*headers, "x-session-id", POLICY_HEADER}
    for name, (value, field, expected) in headers.items():
        features = read_head("POST", SERVICE + "ModelStreamInfer", {name: value})
        assert getattr(features, field) == expected
    features = read_head("POST", SERVICE + "ModelStreamInfer", {})
    assert session_of(features, {"x-session-id": "s"}, "x-session-id") == "s"
