"""Counts the tokens that streamed answers told, by pool and model. Pure.

Rules:

1. Only good answers in pools with `telemetry.usage` count, each once, with its final entry.
2. What an answer does not tell is unknown and adds nothing; ``answers`` says how many told a count.
3. A model is a label only if the pool lists it. Any other name (an adapter, an alias, what a client
   invented) is ``other``, so there are at most as many series as models in pools.
4. Time per output token is ``seconds`` / ``tokens`` of ``between``: the time from the first byte of
   the body to the last one, over the tokens after the first. The last event may hold several.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ext_proc.feedback.entries import Entry
    from ext_proc.routing.values.pool import Pool

OTHER: Final = "other"
PROMPT: Final = "prompt"
CACHED: Final = "cached"
OUTPUT: Final = "output"


class TokenCounts:
    """Token counts of all pools; see the module's rules."""

    def __init__(self) -> None:
        self.tokens: Counter[tuple[str, str, str]] = Counter()
        """Tokens by pool, model and kind (``prompt``, ``cached``, ``output``)."""
        self.answers: Counter[tuple[str, str, str]] = Counter()
        """Answers that told a count of the kind."""
        self.between: Counter[tuple[str, str]] = Counter()
        """Output tokens after the first, of answers whose times are known."""
        self.seconds: dict[tuple[str, str], float] = {}
        """Seconds that these took."""

    def take(self, pool: Pool, entry: Entry) -> None:
        """Count a good answer by its final entry."""
        usage = entry.usage
        if usage is None or not pool.usage:
            return
        model = usage.model if usage.model in pool.models else OTHER
        told = ((PROMPT, usage.prompt), (CACHED, usage.cached), (OUTPUT, usage.output))
        for kind, count in told:
            if count is not None:
                self.tokens[pool.name, model, kind] += count
                self.answers[pool.name, model, kind] += 1
        first_s, last_s, output = entry.first_at_s, entry.last_at_s, usage.output
        if first_s is None or last_s is None or output is None or output <= 1 or last_s < first_s:
            return
        key = (pool.name, model)
        self.between[key] += output - 1
        self.seconds[key] = self.seconds.get(key, 0.0) + last_s - first_s
