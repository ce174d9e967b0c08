"""Says in the log which peers are refused for their identity, without a peer filling the log.

Rules:

1. The same refusal is logged once per ``AGAIN_S``.
2. At most ``MAX_KNOWN`` refusals are remembered; further ones are not logged until some are old.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate_common.tls.roles import Peer

AGAIN_S: Final = 600.0
MAX_KNOWN: Final = 64

_log = structlog.stdlib.get_logger("tidegate.tls")


class DeniedPeers:
    """Logs refusals; see the module's rules.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[tuple[Peer, str], float] = {}
        self.count = 0
        """Refusals since the start."""

    def note(self, address: str, peer: Peer, reason: str) -> None:
        """Record a refusal.

        Args:
            address: The peer's address.
            peer: Its names.
            reason: One sentence.
        """
        self.count += 1
        now, key = self._clock(), (peer, reason)
        if now - self._known.get(key, float("-inf")) < AGAIN_S:
            return
        if len(self._known) >= MAX_KNOWN:
            self._known = {k: at for k, at in self._known.items() if now - at < AGAIN_S}
            if len(self._known) >= MAX_KNOWN:
                return
        self._known[key] = now
        _log.warning("peer_refused", peer=address, reason=reason)
