"""Parses a body into features: selects the form's reader and undoes HTTP's content coding.

OpenAI's ``model`` may name an adapter too: ``base<separator>adapter``. Source: the
``--lora-separator`` of Triton's OpenAI frontend. The separator is configured at the server and not
known here: any of ``: / # @ | +`` after the longest name that a pool serves is taken as the
separator. The request is not rewritten.
"""

from __future__ import annotations

import gc
import re
from typing import TYPE_CHECKING, Final

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
from ext_proc.routing.values.request import HTTP_INFER, NAMES_ADAPTER, OTHER, Features, Form

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.request import Features


_ENGINE_READERS: Final = {
    Form.OPENAI: read_openai,
    Form.RESPONSES: read_responses,
    Form.MESSAGES: read_messages,
    Form.SCORE: read_score,
    Form.SGLANG: read_sglang,
}
"""Of engines that serve without Triton."""
_GRPC_READERS: Final = {
    Form.GRPC_INFER: read_grpc,
    Form.GRPC_STREAM: read_grpc,
    Form.MODEL_CALL: read_model_call,
}


def read_body(  # noqa: C901 - a function for a part costs each request a call
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
    if features.form is OTHER:
        return features
    quiet = len(body) > QUIET_BYTES or "content-encoding" in headers
    if quiet:
        gc.disable()
    try:
        grpc_reader = _GRPC_READERS.get(features.form)
        if grpc_reader is not None:
            return grpc_reader(features, headers, body, complete=complete)
        if features.form is HTTP_INFER:
            if "content-encoding" in headers:
                return _read_coded_infer(features, headers, body, complete=complete)
            return read_infer(features, headers, body, complete=complete)
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
        reader = _ENGINE_READERS.get(features.form, read_generate)
        return reader(features, body, complete=complete)
    finally:
        if quiet:
            gc.enable()


def _unknown(coding: str) -> BadRequest:
    return BadRequest(f"the content coding {coding[:32]!r} is unknown; use gzip or deflate")


def _read_coded_infer(
    features: Features,
    headers: Mapping[str, str],
    body: bytes | memoryview,
    *,
    complete: bool,
) -> Features:
    """Read an ``infer`` body with a content coding, whose names Triton compares exactly."""
    coding = headers["content-encoding"]
    if coding != "identity":
        if not is_supported(coding):
            raise _unknown(coding)
        if complete and not len(body):
            raise BadRequest("the request body is empty; there is nothing to decompress")
        body, complete, features.inflated_bytes = inflate(
            body, complete=complete, place=None, announced=values.announced(headers)
        )
    return read_infer(features, headers, body, complete=complete)


def session_of(features: Features, headers: Mapping[str, str], session_header: str) -> str | None:
    """Return the request's session: from the header, or else from the body.

    OpenAI's bodies name one as ``prompt_cache_key`` or ``user``, Anthropic's as
    ``metadata.user_id``, and SGLang's as ``session_params.id`` or ``session_id``.

    Args:
        features: Features read so far.
        headers: Headers by lower-case name.
        session_header: The pool's session header, in lower case.
    """
    return values.session(headers.get(session_header)) or features.session


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
            made = features.copy()
            made.model, made.adapter = base, adapter
            return made
    return features
