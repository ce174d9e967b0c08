"""The sessions of all pools that may have a rollout. Pure.

Rules:

1. A rollout needs two variants, so sessions are followed in pools that have as many. Before one
   begins, that tells which sessions are not new (``sessions``, rule 1).
2. A session's digest is the same in all processes of a fleet. It is keyed by the fleet's seed.
3. A session is what the weights draw by: the session, as far as the one that drew has read it; else
   the sequence; else a request is its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

from ext_proc.canary.sessions import CanarySessions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.request import Request


class CanaryRollouts:
    """The sessions by pool; see the module's rules."""

    def __init__(self) -> None:
        self.sessions: dict[str, CanarySessions] = {}
        """Those of all pools with two variants or more."""
        self.running: dict[str, CanarySessions] = {}
        """Those of pools with a rollout, or with one that ended lately; always the same object."""

    def set_pools(self, pools: Mapping[str, Pool], now: float) -> None:
        """Take all pools.

        Args:
            pools: The pools by name.
            now: Monotonic seconds.
        """
        before, self.sessions = self.sessions, {}
        self.running.clear()
        for name, pool in pools.items():
            if len(pool.variants) > 1:
                sessions = self.sessions[name] = before.get(name) or CanarySessions(now)
                sessions.set_arms(pool.canary, now)
                if sessions.rollout is not None:
                    self.running[name] = sessions

    def describe(self) -> dict[str, object]:
        """Return the rollouts that run by pool, ready for JSON."""
        return {name: each.describe() for name, each in self.running.items() if each.arms}


def session_digest(request: Request, pool: Pool) -> int | None:
    """Return the digest of a request's session, 64 bits; ``None`` = it is its own."""
    features = request.features
    name = features.session
    if name is not None and (request.variant is None or pool.session_header in request.headers):
        return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"), pool.seed)
    if features.sequence_id is None:
        return None
    text = repr(tuple(features.sequence or ()))
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"), pool.seed)
