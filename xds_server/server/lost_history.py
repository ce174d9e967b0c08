"""Tells that a new history stands beside clients of an older one, which is then lost.

Rules:

1. A client is of an older history if it holds resources of a type that its node has not requested
   from this process before. Its stream is ended: it keeps what it has. Others are served, so a
   client that states what is not true harms only itself.
2. Clients are looked at for ``LOOK_S`` seconds after the start: Envoys and pickers that have lost
   their control server try again within 30 s. If none was of an older history, later ones are
   served; otherwise the look goes on, also after a restart, until what is lost is restored or the
   loss accepted (``xds_server.app``).
3. At most ``MAX_KNOWN`` pairs of node and type are remembered; above that all are served.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

from xds_server.protocol.messages import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.server.connection import AdsConnection

LOOK_S: Final = 60.0
"""Seconds after the start for which clients are looked at."""

MAX_KNOWN: Final = 65_536
"""Most pairs of node and type that are remembered."""


class LostHistory:
    """Refuses clients of an older history; see the module's rules.

    Args:
        store: What has the new history, as errors name it.
        clock: Monotonic seconds.
        look: Look at clients; otherwise all are served.
        reason: What was lost before a restart; empty = nothing.
    """

    def __init__(
        self, store: str, clock: Callable[[], float], *, look: bool, reason: str = ""
    ) -> None:
        self._store, self._clock = store, clock
        self._until = clock() + LOOK_S if look else -math.inf
        self.found = asyncio.Event()
        """Set when the first such client has come."""
        self.reason = reason
        """What is lost, and what to do; empty while there is none."""
        self._known: set[tuple[str, str, str]] = set()

    def check(self, connection: AdsConnection, type_url: str, *, holds: bool) -> None:
        """Look at a client's first request of a type on its stream.

        Args:
            connection: The client.
            type_url: The type.
            holds: It states that it holds resources of this type.

        Raises:
            ProtocolError: It is of an older history; its stream must end.
        """
        if not self.reason and self._clock() > self._until:
            return
        key = connection.audience, connection.node, type_url
        if not holds or key in self._known or len(self._known) >= MAX_KNOWN:
            if len(self._known) < MAX_KNOWN:
                self._known.add(key)
            return
        if not self.reason:
            self.reason = (
                f"{self._store} was empty, but {connection.node} ({connection.peer}) holds a"
                " configuration: the revisions, drains and canaries that led to it are lost, and"
                " clients that hold it get nothing; restore a backup of it, or start once"
                " with --accept-loss to go on from the fleet file"
            )
            self.found.set()
        raise ProtocolError(self.reason)
