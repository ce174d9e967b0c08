"""How often a peer failed to prove who it is, bounded. Pure.

Rules:

1. After ``MAX_FAILURES`` failures within ``WINDOW_S`` a peer is refused without a look at what it
   presents, until ``WINDOW_S`` after the last of them.
2. At most ``MAX_PEERS`` are remembered; a further one replaces the one whose last failure is the
   oldest.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_FAILURES: Final = 10
WINDOW_S: Final = 60.0
MAX_PEERS: Final = 1024


class Failures:
    """Failures by peer; see the module's rules.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: OrderedDict[str, deque[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def note(self, peer: str) -> None:
        """Record a failure of a peer."""
        times = self._known.pop(peer, None)
        if times is None:
            times = deque(maxlen=MAX_FAILURES)
            if len(self._known) >= MAX_PEERS:
                self._known.popitem(last=False)
        times.append(self._clock())
        self._known[peer] = times

    def blocked(self, peer: str) -> bool:
        """Return whether a peer is refused."""
        times = self._known.get(peer)
        if times is None:
            return False
        now = self._clock()
        if now - times[-1] >= WINDOW_S:
            del self._known[peer]
            return False
        return len(times) == MAX_FAILURES and times[-1] - times[0] < WINDOW_S
