"""A sample of the latest decisions, each with the explanation of its moment.

Rules:

1. Each ``EVERY``-th decision is due, the first included, unless the one kept before is younger than
   ``GAP_S``: an explanation costs as much as some decisions, and the sample must stay cheap at any
   rate.
2. The explanation is taken before the decision changes anything: its prices and parts are those
   by which it was made.
3. At most ``KEPT`` decisions are kept.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.routing.pipeline.decision import Decision
    from ext_proc.routing.values.request import Request

EVERY: Final = 32
GAP_S: Final = 0.25
KEPT: Final = 64
MOST_ENDPOINTS: Final = 256
"""In a larger pool a sample does not say why others were no candidates."""


class _Sample(NamedTuple):
    at: float
    model: str | None
    decision: Decision
    explained: Mapping[str, object]


class Recent:
    """The ring of sampled decisions."""

    __slots__ = ("_kept", "_last", "_seen")

    def __init__(self) -> None:
        self._kept: deque[_Sample] = deque(maxlen=KEPT)
        self._seen = 0
        self._last = float("-inf")

    def due(self, now: float) -> bool:
        """Count a decision; tell whether it is to be kept (rule 1)."""
        self._seen += 1
        if self._seen % EVERY != 1 or now - self._last < GAP_S:
            return False
        self._last = now
        return True

    def keep(
        self, request: Request, decision: Decision, explained: Mapping[str, object], now: float
    ) -> None:
        """Keep a decision with what ``explain`` said before it was made."""
        self._kept.append(_Sample(now, request.features.model, decision, explained))

    def describe(self, now: float) -> list[dict[str, object]]:
        """Return the kept decisions, the oldest first, ready for JSON."""
        return [
            {
                **each.explained,
                "age_s": round(now - each.at, 3),
                "model": each.model,
                "picked": next(
                    candidate.key.id
                    for candidate in each.decision.candidates
                    if candidate.address == each.decision.addresses[0]
                ),
                "reason": each.decision.reason,
                "addresses": list(each.decision.addresses),
                "matched_blocks": each.decision.matched_blocks,
                "scores": dict(each.decision.scores),
            }
            for each in self._kept
        ]
