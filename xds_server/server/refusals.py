"""Peers whose requests the ADS server does not serve: reason, number and time, for operators.

Rules:

1. Peers are told apart by node id or, if they state none, by IP address.
2. At most ``MAX_REFUSALS`` pairs of peer and reason are kept, for ``KEEP_S`` seconds after the last
   refusal. Above that the one refused longest ago is dropped.
3. The first refusal of a pair is logged, and at most ``MAX_LOGGED`` per ``LOG_WINDOW_S`` seconds of
   all peers together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from xds_server.protocol.messages import RefusedPeer

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_REFUSALS: Final = 64
MAX_LOGGED: Final = 64
LOG_WINDOW_S: Final = 60.0
KEEP_S: Final = 3600.0
MAX_REASON_CHARS: Final = 400
MAX_WHO_CHARS: Final = 256

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Entry:
    peer: str
    node: str
    count: int
    last: float


class RefusedPeers:
    """Keeps the refused peers; see the module's rules.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._found: dict[tuple[str, str], _Entry] = {}
        self._window, self._logged = clock(), 0

    def note(self, peer: str, node: str, reason: str) -> None:
        """Record a refusal.

        Args:
            peer: The peer's address, as gRPC writes it.
            node: Its node id; empty if it stated none.
            reason: One sentence.
        """
        now = self._clock()
        peer, node = peer[:MAX_WHO_CHARS], node[:MAX_WHO_CHARS]
        reason = reason[:MAX_REASON_CHARS]
        key = (node or peer.rpartition(":")[0], reason)
        entry = self._found.pop(key, None)
        if entry is None or now - entry.last > KEEP_S:
            entry = _Entry(peer, node, 0, now)
            self._say(peer, node, reason, now)
        entry.peer, entry.count, entry.last = peer, entry.count + 1, now
        self._found[key] = entry
        if len(self._found) > MAX_REFUSALS:
            del self._found[next(iter(self._found))]

    def newest(self) -> tuple[RefusedPeer, ...]:
        """Return the refusals, the newest first."""
        now = self._clock()
        return tuple(
            RefusedPeer(entry.peer, entry.node, reason, entry.count, now - entry.last)
            for (_, reason), entry in reversed(self._found.items())
            if now - entry.last <= KEEP_S
        )

    def _say(self, peer: str, node: str, reason: str, now: float) -> None:
        if now - self._window > LOG_WINDOW_S:
            self._window, self._logged = now, 0
        if self._logged < MAX_LOGGED:
            self._logged += 1
            _log.warning("xds_refused", peer=peer, node=node, reason=reason)
