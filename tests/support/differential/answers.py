"""One call, sent to a server directly and through the gateway, and how the two answers differ.

An answer is a mapping of facets to values: ``status``, ``body``, ``header content-type``, gRPC's
``code`` and ``details``, the ``result`` of a client's method. Facets that cannot be the same twice
(``date``, counters of requests) are left out where they are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from support.differential.difference import Difference

Answer = dict[str, Any]
"""Facet -> value; a facet that an answer lacks is ``None``."""


@dataclass(frozen=True, slots=True)
class Target:
    """Addresses of the servers, or three times that of the gateway; ``ip:port``."""

    http: str
    """Triton over HTTP."""
    grpc: str
    """Triton over gRPC."""
    openai: str
    """Engine with OpenAI's API."""
    gateway: bool
    """Whether it is the gateway."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a client."""

    name: str
    """Unique; ``client: what it asks``."""
    ask: Callable[[Target], Awaitable[Answer]]
    """Sends it and returns the answer."""


def differing(direct: Answer, gateway: Answer) -> dict[str, tuple[Any, Any]]:
    """Return the facets in which two answers differ, with both values."""
    return {
        facet: (direct.get(facet), gateway.get(facet))
        for facet in sorted(direct.keys() | gateway.keys())
        if direct.get(facet) != gateway.get(facet)
    }


def explain(
    found: dict[str, tuple[Any, Any]], accepted: Iterable[Difference]
) -> tuple[dict[str, tuple[Any, Any]], set[str]]:
    """Return what no accepted difference explains, and the names of those that explain something.

    Args:
        found: Result of ``differing``.
        accepted: The differences that may explain it.
    """
    left, used = dict(found), set()
    for difference in accepted:
        for facet, (direct, gateway) in found.items():
            if difference.explains(facet, direct, gateway):
                left.pop(facet, None)
                used.add(difference.name)
    return left, used
