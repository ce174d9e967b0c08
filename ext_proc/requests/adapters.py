"""Splits OpenAI's ``model`` if it names an adapter too: ``base<separator>adapter``.

Source: the ``--lora-separator`` of Triton's OpenAI frontend. The separator is configured at the
server and not known here: any of ``: / # @ | +`` after the longest name that a pool serves is taken
as the separator. The request is not rewritten.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ext_proc.routing.values.request import NAMES_ADAPTER

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.request import Features

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
