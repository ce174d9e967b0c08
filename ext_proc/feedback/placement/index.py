"""Reads which models a replica has from its answers. Pure.

Sources: Triton's model repository extension, ``POST /v2/repository/index`` and the gRPC call
``RepositoryIndex`` (``grpc_service.proto``): one row ``{name, version, state, reason}`` per version
that the server knows, and one without version and state for a model that was never loaded. Engines
without a repository: OpenAI's ``GET /v1/models``, ``{data: [{id}]}``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from ext_proc.requests import BadRequest
from ext_proc.requests.parsing.protobuf import BYTES, Scanner
from ext_proc.routing.values.listing import (
    MAX_REASON,
    MAX_ROWS,
    OWN_MODEL,
    Listing,
    PlacementState,
    Row,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_BYTES: Final = 1024 * 1024
"""Longest answer that is read."""
MAX_NAME: Final = 256
"""Most characters of a model's name, as for requests; a longer one cannot be asked for."""
MAX_VERSION: Final = 20
_STATES: Final = {"READY": PlacementState.READY, "LOADING": PlacementState.LOADING}
_NOT_LOADED: Final = "not loaded"
_UNLOADING: Final = "unloading"
_MAX_PARTS: Final = 64
"""Fields that are read of a row."""
_PARTS: Final = {1: "name", 2: "version", 3: "state", 4: "reason"}


class IndexUnreadableError(ValueError):
    """The answer is not a list of models."""


def read_index(data: bytes, at: float) -> Listing:
    """Read a repository index in JSON.

    Args:
        data: Body of the answer.
        at: When it was asked, monotonic seconds.

    Raises:
        IndexUnreadableError: The body is not a repository index.
    """
    found = _json(data)
    if not isinstance(found, list):
        raise IndexUnreadableError("not a list")
    return _listing(found, at)


def read_models(data: bytes, at: float) -> Listing:
    """Read the models of an engine with OpenAI's API, all of which are READY.

    Models without a ``parent``, which adapters have, are names of the engine's own model if they
    have one ``root`` (vLLM's and SGLang's ``ModelCard``).

    Args:
        data: Body of the answer.
        at: When it was asked, monotonic seconds.

    Raises:
        IndexUnreadableError: The body is not a list of models.
    """
    found = _json(data)
    models = found.get("data") if isinstance(found, dict) else None
    if not isinstance(models, list):
        raise IndexUnreadableError("not a list of models")
    cards = [each for each in models if isinstance(each, dict)]
    bases = [each for each in cards if not each.get("parent")]
    one = len({str(each.get("root") or each.get("id")) for each in bases}) == 1
    rows = [
        Row(row.model, row.version, row.state, OWN_MODEL) if one and not each.get("parent") else row
        for each in cards[: MAX_ROWS + 1]
        if (row := _row({"name": each.get("id"), "state": "READY"})) is not None
    ]
    return Listing(at, tuple(rows), whole=len(rows) == len(cards)).cut()


def read_grpc_index(data: bytes, at: float) -> Listing:
    """Read a ``RepositoryIndexResponse``.

    Args:
        data: The message's bytes.
        at: When it was asked, monotonic seconds.

    Raises:
        IndexUnreadableError: The bytes are no such message.
    """
    scanner = Scanner(data, MAX_BYTES)
    try:
        rows = [
            {
                _PARTS[each.number]: scanner.text(each, MAX_BYTES)
                for each in scanner.fields(row.start, row.end, _MAX_PARTS)
                if each.number in _PARTS and each.kind == BYTES
            }
            for row in scanner.fields(0, len(data), MAX_ROWS + 1)
            if row.number == 1 and row.kind == BYTES
        ]
    except BadRequest as error:
        raise IndexUnreadableError("not a message of an index") from error
    if scanner.unsure:
        raise IndexUnreadableError("not a message of an index")
    return _listing(rows, at)


def _json(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise IndexUnreadableError("not JSON") from error


def _listing(found: Iterable[Any], at: float) -> Listing:
    rows: list[Row] = []
    whole = True
    for each in found:
        if len(rows) > MAX_ROWS:
            break
        row = _row(each)
        if row is not None:
            rows.append(row)
        else:
            whole = False
    return Listing(at, tuple(rows), whole).cut()


def _row(value: Any) -> Row | None:
    if not isinstance(value, dict):
        return None
    name, version = value.get("name"), value.get("version", "")
    state, reason = value.get("state", ""), value.get("reason", "")
    if not all(isinstance(each, str) for each in (name, version, state, reason)):
        return None
    if not name or len(name) > MAX_NAME or len(version) > MAX_VERSION:
        return None
    if state in _STATES:
        return Row(name, version, _STATES[state])
    why = reason or (_UNLOADING if state == "UNLOADING" else "" if state else _NOT_LOADED)
    return Row(name, version, PlacementState.UNAVAILABLE, why[:MAX_REASON])
