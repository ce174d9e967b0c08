"""Reads a request into features: method, path and headers first, then what only the body contains.

Of the head nothing raises: unreadable values are unknown, and a path that is no inference is
``OTHER``. Paths follow the KServe v2 protocol with Triton's extensions (server:
``src/http_server.cc``). Of a body the form's reader is selected, and HTTP's content coding undone.

OpenAI's ``model`` may name an adapter too: ``base<separator>adapter``. Source: the
``--lora-separator`` of Triton's OpenAI frontend. The separator is configured at the server and not
known here: any of ``: / # @ | +`` after the longest name that a pool serves is taken as the
separator. The request is not rewritten.
"""

from __future__ import annotations

import gc
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from ext_proc.requests.forms.generate import read_generate
from ext_proc.requests.forms.grpc_infer import read_grpc, read_model_call
from ext_proc.requests.forms.http_infer import read_infer
from ext_proc.requests.forms.messages import read_messages
from ext_proc.requests.forms.openai import read_openai
from ext_proc.requests.forms.responses import read_responses
from ext_proc.requests.forms.score import read_score
from ext_proc.requests.forms.sglang import read_sglang
from ext_proc.requests.parsing import values
from ext_proc.requests.parsing.budget import QUIET_BYTES
from ext_proc.requests.parsing.errors import BadRequest
from ext_proc.requests.parsing.inflate import inflate, is_supported
from ext_proc.requests.parsing.values import MAX_NAME_CHARS, MAX_SESSION_CHARS, sooner, version
from ext_proc.routing.values.request import NAMES_ADAPTER, OTHER, Features, Form
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
    from collections.abc import Container, Mapping

    from ext_proc.routing.values.pool import Pool


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
        features.request_id = request_id[:MAX_NAME_CHARS] or None
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


_ENGINE_READERS: Final = {
    Form.OPENAI: read_openai,
    Form.RESPONSES: read_responses,
    Form.MESSAGES: read_messages,
    Form.SCORE: read_score,
    Form.SGLANG: read_sglang,
}
"""Of engines that serve without Triton."""
_JSON_READERS: Final = {
    **_ENGINE_READERS,
    Form.GENERATE: read_generate,
    Form.GENERATE_STREAM: read_generate,
}


def read_body(
    features: Features,
    headers: Mapping[str, str],
    body: bytes | memoryview,
    *,
    complete: bool,
) -> Features:
    """Add what only the body contains.

    Args:
        features: Result of ``read_head``; they are filled in, not copied.
        headers: Headers by lower-case name.
        body: The body, or its first part; it is not kept, and large tensors are not copied.
        complete: Whether ``body`` is the whole body. Of a first part, what is present is read.

    Returns:
        The features with all that could be read; unchanged if the body holds nothing for a router
        (not an inference, or an engine's in a content coding other than gzip and deflate).

    Raises:
        BadRequest: The bytes cannot be a request of that form, or Triton answers them with a 5xx.
        UnsoundRequest: They could harm a replica.
    """
    reader = _JSON_READERS.get(features.form)
    quiet = len(body) > QUIET_BYTES or "content-encoding" in headers
    if reader is not None and not quiet:
        return reader(features, body, complete=complete)
    if features.form is OTHER:
        return features
    if quiet:
        gc.disable()
    try:
        if reader is None:
            return _TENSOR_READERS[features.form](features, headers, body, complete=complete)
        coding = headers.get("content-encoding", "").strip().lower()
        if coding not in ("", "identity"):
            if not is_supported(coding):
                if features.form in _ENGINE_READERS:
                    return features
                raise _unknown(coding)
            body, whole, most = inflate(
                body,
                complete=complete,
                place="the request body",
                announced=values.announced(headers),
            )
            complete = complete and whole
            if features.form not in _ENGINE_READERS:  # engines inflate nothing
                features.inflated_bytes = most
        return reader(features, body, complete=complete)
    finally:
        if quiet:
            gc.enable()


def _unknown(coding: str) -> BadRequest:
    return BadRequest(f"the content coding {coding[:32]!r} is unknown; use gzip or deflate")


def _read_http_infer(
    features: Features,
    headers: Mapping[str, str],
    body: bytes | memoryview,
    *,
    complete: bool,
) -> Features:
    """Read an ``infer`` body; the names of content codings Triton compares exactly."""
    coding = headers.get("content-encoding", "identity")
    if coding != "identity":
        if not is_supported(coding):
            raise _unknown(coding)
        if complete and not len(body):
            raise BadRequest("the request body is empty; there is nothing to decompress")
        body, complete, features.inflated_bytes = inflate(
            body, complete=complete, place=None, announced=values.announced(headers)
        )
    return read_infer(features, headers, body, complete=complete)


_TENSOR_READERS: Final = {
    Form.HTTP_INFER: _read_http_infer,
    Form.GRPC_INFER: read_grpc,
    Form.GRPC_STREAM: read_grpc,
    Form.MODEL_CALL: read_model_call,
}


def session_of(features: Features, headers: Mapping[str, str], session_header: str) -> str | None:
    """Return the request's session: from the header, or else from the body.

    OpenAI's bodies name one as ``prompt_cache_key`` or ``user``, Anthropic's as
    ``metadata.user_id``, and SGLang's as ``session_params.id`` or ``session_id``.

    Args:
        features: Features read so far.
        headers: Headers by lower-case name.
        session_header: The pool's session header, in lower case.
    """
    named = headers.get(session_header)
    if not named:
        return features.session
    return named if len(named) <= MAX_SESSION_CHARS else values.session(named)


_SEPARATOR: Final = re.compile(r"[:/#@|+]+")


class _Served:
    """The models of many pools, evaluated only when a name is looked up."""

    __slots__ = ("_pools",)

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        self._pools = pools

    def __contains__(self, model: object) -> bool:
        return any(model in pool.models for pool in self._pools.values())


def served_by(pools: Mapping[str, Pool]) -> Container[str]:
    """Return the models that any of the pools serves."""
    return _Served(pools)


def split_adapter(features: Features, models: Container[str]) -> Features:
    """Split the model of an OpenAI request into model and adapter.

    Args:
        features: Features of the request; their names are bounded by ``MAX_NAME_CHARS``.
        models: Served models.

    Returns:
        The features with both, unchanged if the whole name is served or no part of it is.
    """
    whole = features.model
    if whole is None or features.form not in NAMES_ADAPTER or whole in models:
        return features
    for found in reversed(list(_SEPARATOR.finditer(whole))):
        base, adapter = whole[: found.start()], whole[found.end() :]
        if adapter and base in models:
            return features.changed(model=base, adapter=adapter)
    return features
