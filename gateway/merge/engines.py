"""OpenAI's lists of models of several engines as one. Pure.

Rules:

1. A model is listed once, as the first replica describes it, in the order of the replicas.
2. A list has at most ``MAX_MODELS`` models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.merge.parity import DescriptionError, parsed

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_MODELS: Final = 10_000
_MAX_ID: Final = 1024


def models_of(data: bytes) -> list[dict[str, Any]]:
    """Return the models of one engine's list.

    Raises:
        DescriptionError: It is no list of models.
    """
    models = parsed(data).get("data")
    if not isinstance(models, list) or len(models) > MAX_MODELS:
        raise DescriptionError
    for each in models:
        name = each.get("id") if isinstance(each, dict) else None
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_ID:
            raise DescriptionError
    return models


def merged(lists: Iterable[Iterable[dict[str, Any]]]) -> dict[str, Any]:
    """Return one list."""
    found: dict[str, dict[str, Any]] = {}
    for models in lists:
        for each in models:
            if len(found) < MAX_MODELS:
                found.setdefault(each["id"], each)
    return {"object": "list", "data": list(found.values())}
