"""Marks versions with the history that they are of, so that clients of another one are told.

Rules:

1. A new store draws a mark before its first revision. Every version that a client is sent ends in
   it, and clients state the versions that they hold.
2. A client that states a version without the mark got it from a store that is lost, or from other
   control servers. Its stream is ended: it keeps what it has, until what is lost is restored or the
   loss accepted. Others are served, so a client that states what is not true harms only itself.
3. A history without a mark serves all clients: in memory, of a store that is older than marks, and
   once a loss was accepted.
4. Nothing of it is in this process's memory: neither a restart nor a kill forgets a loss.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Final

import structlog

from xds_server.protocol.messages import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.fleet.store import RevisionStore

HISTORY_KEY: Final = "history"
"""Key of the mark in the store; empty = none."""

KEEP_S: Final = 120.0
"""Seconds for which a loss is told after a client of another history; they try again each 30 s."""

_log = structlog.get_logger(__name__)


class MarkedHistory:
    """The mark of a history, and what is known of a loss; see the module's rules.

    Args:
        store: What has the history, as errors name it.
        mark: End of all versions; empty = none.
        clock: Monotonic seconds.
    """

    def __init__(
        self, store: str = "", mark: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self.mark, self._clock = store, mark, clock
        self._found, self._last = "", 0.0

    @property
    def reason(self) -> str:
        """What is lost, and what to do; empty if no client of another history came lately."""
        return self._found if self._clock() - self._last < KEEP_S else ""

    @classmethod
    def of(cls, store: RevisionStore, *, lasts: bool, accept_loss: bool) -> MarkedHistory:
        """Return the history of a store, whose mark is drawn if it is new.

        Args:
            store: The store.
            lasts: It outlives this process.
            accept_loss: Clients of another history are served from now on.

        Raises:
            StoreError: It cannot be read, or written.
        """
        known = store.value(HISTORY_KEY)
        new = known is None and lasts and not store.revisions(1)
        mark = "" if accept_loss else f"-{secrets.token_hex(4)}" if new else known or ""
        if mark != (known or ""):
            store.put_value(HISTORY_KEY, mark)
        return cls(store.name, mark)

    def refusal(self, node: str, peer: str) -> ProtocolError:
        """Return the error of a client of another history, whose stream must end."""
        found = (
            f"holds a configuration of another history than {self._store}: the revisions, drains"
            " and canaries that led to it are lost, and clients that hold it get nothing; restore a"
            " backup, or start once with --accept-loss to go on without them"
        )
        known = self.reason
        self._last = self._clock()
        if not known:
            self._found = f"{node} ({peer}) {found}"
            _log.warning("history_lost", reason=self._found)
        return ProtocolError(f"this client {found}")
