"""session-sticky: keeps a session on the replica of its first request.

Formula: ``price = -1`` for the session's replica, otherwise the price of least-in-flight (above 0).
Inputs: the pool's session header; own ledger; fresh queues; capacity.
Defaults: a session expires two hours after its last request; 100,000 are kept, and the least
recently used one is evicted first.
Use it for: replicas with state per session, if the session is known and the prompt is not.
Not for: sessions of very different load, because no load moves a session; visible prompts (auto).

Guarantee: a session moves only when its replica is no longer eligible, and then stays moved.
Sessions are local to this picker; several pickers agree only with the consistent-hash policies.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from ext_proc.routing.policies.base import Policy
from ext_proc.routing.policies.least_in_flight import LeastInFlight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.candidates import SchedulingContext
    from ext_proc.routing.values.pool import EndpointKey

IDLE_S: Final = 7_200.0
MAX_SESSIONS: Final = 100_000


class SessionSticky(Policy):
    """The replica of each live session, per variant.

    Args:
        max_sessions: Maximum number of sessions kept.
    """

    def __init__(self, max_sessions: int = MAX_SESSIONS) -> None:
        self._max = max_sessions
        self._homes: OrderedDict[tuple[str, str], tuple[EndpointKey, float]] = OrderedDict()
        self._least = LeastInFlight()

    def __len__(self) -> int:
        return len(self._homes)

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return the price of least-in-flight, but -1 for the session's replica."""
        home, prices = self._home(context), self._least.prices(context)
        if home is None:
            return prices
        return [
            -1.0 if candidate.key == home else price
            for candidate, price in zip(context.candidates, prices, strict=True)
        ]

    def stays(self, context: SchedulingContext) -> bool:
        """Return whether the session has a replica."""
        return self._home(context) is not None

    def _home(self, context: SchedulingContext) -> EndpointKey | None:
        session = context.request.features.session
        known = None if session is None else self._homes.get((context.variant, session))
        return known[0] if known is not None and known[1] > context.now else None

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Keep the session's replica; return ``session`` if it was the same, else ``least``."""
        session, key = context.request.features.session, context.candidates[index].key
        if session is None:
            return "least"
        stayed = self._home(context) == key
        self._homes[context.variant, session] = (key, context.now + IDLE_S)
        self._homes.move_to_end((context.variant, session))
        if len(self._homes) > self._max:
            self._homes.popitem(last=False)
        return "session" if stayed else "least"
