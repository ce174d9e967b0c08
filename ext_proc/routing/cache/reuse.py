"""Reuse: prompt tokens that replicas took from their caches, by their own counters.

Rules:

1. The difference of ``reused_blocks`` between two readings of a model is counted, times its
   ``kv_block_tokens``. Counting starts at the first reading. A counter that fell means that the
   replica was restarted; counting starts again from the new value.
2. A replica that does not report the counter has no number, not 0.
3. Only replicas of the fleet are kept, with at most ``MAX_MODELS`` models each.

Engines count the requests of all clients. With several pickers, the reused share of a replica's
prompts is therefore this number divided by the prompts that all pickers sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ext_proc.routing.values.reading import Reading

MAX_MODELS: Final = 64


class Reuse:
    """Tokens reused by endpoint id."""

    __slots__ = ("_before", "_tokens")

    def __init__(self) -> None:
        self._before: dict[str, dict[tuple[str | None, str | None], float]] = {}
        self._tokens: dict[str, float] = {}

    def keep(self, endpoints: Iterable[str]) -> None:
        """Drop all endpoints but these."""
        wanted = set(endpoints)
        for gone in [each for each in self._before if each not in wanted]:
            del self._before[gone]
            self._tokens.pop(gone, None)

    def observe(self, endpoint: str, readings: Sequence[Reading]) -> None:
        """Take the latest readings of an endpoint."""
        for reading in readings:
            reused, size = reading.reused_blocks, reading.kv_block_tokens
            if reused is None or size is None:
                continue
            before = self._before.setdefault(endpoint, {})
            key = (reading.model, reading.version)
            if key not in before and len(before) >= MAX_MODELS:
                continue
            more = reused - before.get(key, reused)
            before[key] = reused
            self._tokens[endpoint] = self._tokens.get(endpoint, 0.0) + max(0.0, more) * size

    def tokens(self) -> Mapping[str, float]:
        """Return the tokens that each endpoint reused since its first reading."""
        return self._tokens
