"""How long the publisher waits for one client's answers. Pure.

Rules:

1. A client *owes* an answer while a message to it is unanswered. The clock starts when the first
   such message is sent and restarts with each answer. A newer publication does not restart it, so
   a silent client is late once and not once per change.
2. It is *late* once it has owed an answer for its patience: ``FACTOR`` times its slowest answer so
   far, at least ``LEAST_S``, or ``WARMING_S`` for types that Envoy acknowledges only when they are
   warm; at most the limit given. Before its first answer on a stream it has the limit.
3. A client is *slow* after ``SLOW_ANSWERS`` answers more that took longer than ``LEAST_S`` than
   answers in time, until as many were in time as were not. Types that must warm do not count; the
   count is between 0 and ``MAX_SLOW``. So a client which is slow most of the time stays so, and one
   that has recovered is waited for after ``MAX_SLOW`` answers. A slow client is not waited for at
   all: otherwise each stage would take as long as its answer.
4. A node that was late is remembered, so that a client that reconnects and stays silent is not
   waited for again. It has no patience left until it answers. Answers of another client with the
   same node id, connected before, do not count. At most ``MAX_NODES`` are remembered; the oldest
   are dropped first.
5. A node that went away while it owed an answer, and is back, is *unsteady*: it has ``BACK_S`` for
   each answer until it answers on a connection that has stood for ``STOOD_S``. One that reconnects
   again and again, and answers only at the start, would never be late otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidegate_api.names import CLUSTER_TYPE, LISTENER_TYPE

if TYPE_CHECKING:
    from collections.abc import Hashable

FACTOR: Final = 10.0
LEAST_S: Final = 1.0
WARMING_S: Final = 5.0
"""A new cluster is warm after its endpoints' first health checks: a second, where one is dead."""
SLOW_ANSWERS: Final = 3
MAX_SLOW: Final = 2 * SLOW_ANSWERS
MAX_NODES: Final = 4096
BACK_S: Final = 0.05
"""Patience with an unsteady node, seconds: a healthy client answers in milliseconds."""
STOOD_S: Final = 5.0
"""Seconds after which a connection is steady."""
_WARMING: Final = frozenset({CLUSTER_TYPE, LISTENER_TYPE})


@dataclass(slots=True)
class Debt:
    """What one client owes."""

    since: float | None = None
    """Since when it owes an answer, monotonic seconds; ``None`` = it owes none."""
    slowest_s: float | None = None
    """Its slowest answer so far; ``None`` = it has not answered yet."""
    known_late: bool = False
    """Its node was late on an earlier connection and has not answered since."""

    unsteady: bool = False
    """Its node went away while it owed an answer, and has not stood since (rule 5)."""
    slow_answers: int = 0
    """Answers that took longer than ``LEAST_S``, minus those in time; 0 to ``MAX_SLOW``."""
    slow: bool = False
    """It is not waited for (rule 3)."""

    def sent(self, now: float) -> None:
        """Note that a message was sent."""
        if self.since is None:
            self.since = now

    def answered(self, type_url: str, waited_s: float, now: float, *, owes_more: bool) -> None:
        """Note an answer.

        Args:
            type_url: The type that it answers.
            waited_s: Seconds from the message to its answer.
            now: Monotonic seconds.
            owes_more: Whether other messages are unanswered.
        """
        self.slowest_s = max(self.slowest_s or 0.0, waited_s)
        self.since = now if owes_more else None
        self.known_late = False
        if type_url not in _WARMING:
            counted = self.slow_answers + (1 if waited_s > LEAST_S else -1)
            self.slow_answers = max(0, min(counted, MAX_SLOW))
            self.slow = self.slow_answers >= (1 if self.slow else SLOW_ANSWERS)

    def late_at(self, type_url: str, limit_s: float) -> float:
        """Return when the client is late, monotonic seconds; infinite if it owes nothing.

        Args:
            type_url: The type that it has not acknowledged.
            limit_s: Longest patience, in seconds.
        """
        if self.since is None:
            return float("inf")
        if self.known_late or self.slow:
            return self.since
        if self.unsteady:
            return self.since + min(limit_s, BACK_S)
        if self.slowest_s is None:
            return self.since + limit_s
        least = WARMING_S if type_url in _WARMING else LEAST_S
        return self.since + min(limit_s, max(least, FACTOR * self.slowest_s))


class LateNodes:
    """Nodes whose last connection ended while they were late, or owed an answer (rules 4, 5)."""

    def __init__(self) -> None:
        self._nodes: dict[Hashable, None] = {}

    def __contains__(self, node: Hashable) -> bool:
        """Return whether the node was late and has not answered since."""
        return node in self._nodes

    def note(self, node: Hashable, *, late: bool) -> None:
        """Remember or forget a node."""
        self._nodes.pop(node, None)
        if late:
            self._nodes[node] = None
            if len(self._nodes) > MAX_NODES:
                del self._nodes[next(iter(self._nodes))]
