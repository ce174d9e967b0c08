"""Reads the state of a pool's models from Triton's repository index. Pure.

Source: Triton's model repository extension, ``POST /v2/repository/index``: a list of
``{name, version, state, reason}``, one per version that the server knows, and one without version
and state for a model that was never loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_BYTES: Final = 1024 * 1024
MAX_TEXT: Final = 120
_READY: Final = "READY"
_ABSENT: Final = "not loaded"


class IndexUnreadableError(ValueError):
    """The response is not a repository index."""


def unavailable(data: bytes, models: Iterable[str], version: str | None) -> str | None:
    """Return which of the models cannot be served, and why.

    Args:
        data: Body of the response.
        models: Models that the replica should serve. A model that the index does not list is
            ignored: it may be served by other means.
        version: Version that the replica should serve; ``None`` = any.

    Returns:
        One line for the first such model; ``None`` if each listed one is READY.

    Raises:
        IndexUnreadableError: The body is not a repository index.
    """
    states = _states(data)
    for model in sorted(models):
        listed = [each for each in states if each["name"] == model]
        matching = [each for each in listed if version is None or _text(each, "version") == version]
        if listed and not any(_text(each, "state") == _READY for each in matching):
            return f"{model}: {_why(matching)}"[:MAX_TEXT]
    return None


def _states(data: bytes) -> list[dict[str, Any]]:
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise IndexUnreadableError("not JSON") from error
    if not isinstance(found, list):
        raise IndexUnreadableError("not a list")
    return [each for each in found if isinstance(each, dict) and isinstance(each.get("name"), str)]


def _why(listed: list[dict[str, Any]]) -> str:
    if not listed:
        return _ABSENT
    last = listed[-1]
    state, reason = _text(last, "state"), _text(last, "reason")
    return f"{state} ({reason})" if state and reason else state or _ABSENT


def _text(state: dict[str, Any], field: str) -> str:
    value = state.get(field, "")
    return value if isinstance(value, str) else ""
