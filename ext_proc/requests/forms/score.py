"""Scores and reranking: how well documents fit a query.

The engine computes a prompt per pair. They begin with the query, which is all that they share: it
and then all documents are what counts here, for the cache and for the work.

Source: vLLM 0.32, ``entrypoints/pooling/scoring/protocol.py``; SGLang and Jina have the same names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ext_proc.requests.parsing import turns, values
from ext_proc.requests.parsing.budget import MAX_TEXTS
from ext_proc.requests.parsing.json_prefix import Document, read_object
from ext_proc.requests.parsing.tensors import SEPARATOR

if TYPE_CHECKING:
    from ext_proc.routing.values.request import Features

_QUERIES: Final = ("query", "queries", "text_1", "data_1")
_DOCUMENTS: Final = ("documents", "items", "text_2", "data_2")
_PLACE: Final = "the request"


def read_score(features: Features, body: bytes | memoryview, *, complete: bool) -> Features:
    """Read the body of a score or rerank request.

    Raises:
        BadRequest: The body is not a JSON object, or its model is not a text.
    """
    document = read_object(body, complete=complete, place=_PLACE)
    members = document.members
    features.model = values.name(members.get("model"), "`model`") or features.model
    features.session = values.session(members.get("user"))
    features.salt = values.session(members.get("cache_salt"))
    features.prompt, features.prompt_is_partial = _prompt(document)
    return features


def _prompt(document: Document) -> tuple[bytes | None, bool]:
    members = document.members
    query = next((key for key in _QUERIES if key in members), None)
    if query is None:
        return None, False
    found, more = _texts(members[query])
    cut = document.is_cut(query)
    if not cut:
        key = next((key for key in _DOCUMENTS if key in members), None)
        if key is not None:
            documents, more_documents = _texts(members[key])
            found += documents
            cut, more = document.is_cut(key), more or more_documents
    text = SEPARATOR.join(each.encode() for each in found)
    most = values.MAX_PROMPT_BYTES
    return text[:most], cut or more or len(text) > most


def _texts(value: object) -> tuple[list[str], bool]:
    """Return the texts of a member, and whether some are left out."""
    several: list[Any] = value if isinstance(value, list) else [value]
    return [_text(each) for each in several[:MAX_TEXTS]], len(several) > MAX_TEXTS


def _text(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("text", value.get("content"))
    return turns.texts(value)
