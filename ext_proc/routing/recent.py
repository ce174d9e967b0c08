"""A sample of the latest decisions, each with the explanation taken when it was made.

Rules:

1. Every ``EVERY``-th decision is sampled, starting with the first, and each one that comes
   ``QUIET_S`` or more after the previous sample; none that comes within ``GAP_S`` of it. An
   explanation costs as much as several decisions, so the sample must stay cheap at any request
   rate.
2. The explanation is taken before the decision changes any state: it shows the prices and terms
   on which the decision was based.
3. At most ``KEPT`` decisions are kept, with bodies of up to ``MAX_BODY`` bytes.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.routing.pipeline.decision import Decision
    from ext_proc.routing.values.request import Request

EVERY: Final = 32
GAP_S: Final = 0.25
QUIET_S: Final = 1.0
KEPT: Final = 64
MAX_BODY: Final = 32_768
BODIES: Final = 16
MOST_ENDPOINTS: Final = 256
"""In a larger pool a sample omits why the other endpoints were no candidates."""


class _Sample(NamedTuple):
    at: float
    client: str | None
    body: bytes | None
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
        """Count a decision; return whether it is to be sampled (rule 1)."""
        self._seen += 1
        since = now - self._last
        if since < GAP_S or (since < QUIET_S and self._seen % EVERY != 1):
            return False
        self._last = now
        return True

    def keep(
        self, request: Request, decision: Decision, explained: Mapping[str, object], now: float
    ) -> None:
        """Keep a decision with the explanation that was taken before it."""
        body = request.body
        if body is not None and len(body) > MAX_BODY:
            body = None
        confined = request.care is not None and request.care.member
        client = None if confined else request.client  # it must not become usual by that
        sample = _Sample(now, client, body, request.features.model, decision, explained)
        self._kept.append(sample)

    def bodies(self, pool: str) -> list[tuple[str | None, bytes | None]]:
        """Return models and bodies of a pool's ``BODIES`` latest samples.

        ``None`` = unknown, or longer than ``MAX_BODY``.
        """
        latest = [(each.model, each.body) for each in self._kept if each.decision.pool == pool]
        return latest[-BODIES:]

    def shares(self, pool: str) -> dict[str, float]:
        """Return each known client's share of a pool's sampled decisions.

        Samples are far apart, so no client raises its share by many requests at one time.
        """
        clients = [each.client for each in self._kept if each.decision.pool == pool]
        counts = Counter(client for client in clients if client is not None)
        return {client: count / len(clients) for client, count in counts.items()}

    def describe(self, now: float) -> list[dict[str, object]]:
        """Return the sampled decisions, the oldest first, ready for JSON."""
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
