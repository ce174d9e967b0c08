"""Parses method, path and headers into features, before any body.

Nothing here raises: unreadable values are unknown, and a path that is no inference is ``OTHER``.
Paths follow the KServe v2 protocol with Triton's extensions (server: ``src/http_server.cc``).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from ext_proc.requests.parsing.values import MAX_NAME_CHARS, label, sooner, version
from ext_proc.routing.values.request import Features, Form
from tidegate_api.names import (
    MODEL_HEADER,
    POOL_HEADER,
    REQUEST_ID_HEADER,
    SEQUENCE_HEADER,
    TIMEOUT_HEADER,
)
from tidegate_api.paths import (
    MESSAGES_ENDING,
    OPENAI_ENDINGS,
    RESPONSES_ENDING,
    SCORE_ENDINGS,
    SCORE_PATHS,
    SGLANG_PATH,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

GRPC_SERVICE: Final = "/inference.GRPCInferenceService/"
MAX_PATH_CHARS: Final = 4096

_MODEL_PATH: Final = re.compile(
    r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]+))?(?:/(?P<verb>[a-z_]+))?",
)
_ALL_STATS: Final = "/v2/models/stats"
_VERBS: Final = {
    "infer": Form.HTTP_INFER,
    "generate": Form.GENERATE,
    "generate_stream": Form.GENERATE_STREAM,
}
_METHODS: Final = {
    "ModelInfer": Form.GRPC_INFER,
    "ModelStreamInfer": Form.GRPC_STREAM,
    "ModelReady": Form.MODEL_CALL,
    "ModelMetadata": Form.MODEL_CALL,
    "ModelConfig": Form.MODEL_CALL,
    "ModelStatistics": Form.MODEL_CALL,
}
_ENDINGS: Final = (
    (OPENAI_ENDINGS, Form.OPENAI),
    (RESPONSES_ENDING, Form.RESPONSES),
    (MESSAGES_ENDING, Form.MESSAGES),
    (SCORE_ENDINGS, Form.SCORE),
)
_WHOLE: Final = {**dict.fromkeys(SCORE_PATHS, Form.SCORE), SGLANG_PATH: Form.SGLANG}
_STREAMING: Final = frozenset({Form.GRPC_STREAM, Form.GENERATE_STREAM})

_NO_INFERENCE: Final = (Form.OTHER, None, None)

_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_MILLISECONDS: Final = re.compile(r"[0-9]{1,12}")
_TIMEOUT_UNIT_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MAX_INT64_DIGITS: Final = 19


def read_head(method: str, path: str, headers: Mapping[str, str]) -> Features:
    """Read method, path and headers.

    Args:
        method: HTTP method, upper case.
        path: The ``:path``, possibly with a query string.
        headers: Headers by lower-case name.

    Returns:
        The features; the form is ``Form.OTHER`` for everything that is not an inference (the model
        is kept if the path names one, as in ``/v2/models/M/config``). If the body names a model,
        that model replaces the header's.
    """
    form, model, asked = _NO_INFERENCE if len(path) > MAX_PATH_CHARS else _read_path(method, path)
    get = headers.get
    features = Features(form, model=model, version=asked, streaming=form in _STREAMING)
    # Few requests have any of these, and this is the hot path.
    if (pool := get(POOL_HEADER)) is not None:
        features.pool = _name(pool)
    if model is None and (named := get(MODEL_HEADER)) is not None:
        features.model = _name(named)
    if (sequence := get(SEQUENCE_HEADER)) is not None:
        features.sequence_id = _sequence(sequence)
    if (request_id := get(REQUEST_ID_HEADER)) is not None:
        features.request_id = label(request_id)
    if (spoken := get("grpc-timeout")) is not None or TIMEOUT_HEADER in headers:
        features.timeout_s = _timeout(spoken, get(TIMEOUT_HEADER))
    return features


@lru_cache(maxsize=1024)
def _read_path(method: str, path: str) -> tuple[Form, str | None, str | None]:
    bare = path.partition("?")[0]
    posted = method == "POST"
    if bare.startswith(GRPC_SERVICE):
        called = _METHODS.get(bare[len(GRPC_SERVICE) :], Form.OTHER)
        return called if posted else Form.OTHER, None, None
    found = _MODEL_PATH.fullmatch(bare)
    if found is not None:
        verb = _VERBS.get(found["verb"] or "", Form.OTHER)
        if bare == _ALL_STATS:
            return Form.OTHER, None, None
        model = _name(unquote(found["model"]))
        told = found["version"]
        return verb if posted else Form.OTHER, model, None if told is None else version(told)
    return _form(bare) if posted else Form.OTHER, None, None


def _form(path: str) -> Form:
    """Return the form of a path that names no model."""
    for ending, form in _ENDINGS:
        if path.endswith(ending):
            return form
    return _WHOLE.get(path, Form.OTHER)


def _name(value: str | None) -> str | None:
    return value if value and len(value) <= MAX_NAME_CHARS else None


def _sequence(value: str | None) -> int | str | None:
    """Read a sequence id as Triton does in JSON: an unsigned integer, or else a text."""
    text = _name(value)
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) <= _MAX_INT64_DIGITS:
        return int(text) or None
    return text


def _timeout(spoken: str | None, own: str | None) -> float | None:
    """Return the sooner of ``grpc-timeout`` and Tidegate's own header, in seconds.

    gRPC over HTTP/2 writes at most eight digits and a unit. Tidegate's header is in milliseconds; 0
    means none.
    """
    found = _TIMEOUT.fullmatch(spoken) if spoken else None
    of_grpc = None if found is None else int(found[1]) * _TIMEOUT_UNIT_S[found[2]]
    found = _MILLISECONDS.fullmatch(own) if own else None
    return sooner(of_grpc, None if found is None else int(found[0]) / 1000 or None)
