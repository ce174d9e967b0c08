"""Keeps the lease of the leader, and ends the process before the lease can end.

Rules:

1. One thread renews the lease. Another looks ``LOOKS_S`` apart whether it holds, by a clock that
   counts the time in which the machine sleeps, and so does each transaction.
2. When it holds no more, or another server has changed the head, the process ends at once, with all
   its streams and whatever its event loop does. What supervises it starts it again, as a follower.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import structlog

from xds_server.fleet.stored.epochs import Tenure
from xds_server.fleet.stored.shared import SharedFault, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

LOOKS_S: Final = 0.2
"""Seconds between two looks at the clock."""

_log = structlog.get_logger(__name__)


class Granted(NamedTuple):
    """A lease."""

    id: int
    ttl_s: float


class LeaseCalls(Protocol):
    """Renews leases; calls block and raise ``SharedFault``."""

    def keep(self, lease: Granted) -> float:
        """Renew a lease; return its time in seconds from now, 0 or less = it has ended."""

    def revoke(self, lease: Granted) -> None:
        """End a lease."""


def clock() -> float:
    """Return seconds that pass while the machine sleeps, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Keeper:
    """Keeps a lease; see the module's rules.

    Args:
        leases: Renews it.
        lease: The lease.
        asked: The clock before it was granted.
        end: Ends the process.
    """

    def __init__(
        self, leases: LeaseCalls, lease: Granted, asked: float, end: Callable[[], None]
    ) -> None:
        self._leases, self._lease, self._end = leases, lease, end
        self._tenure = Tenure(asked, lease.ttl_s)
        self._stopped = threading.Event()
        self._ending = threading.Lock()
        self._threads = [
            threading.Thread(target=each, name="lease", daemon=True)
            for each in (self._renew, self._watch)
        ]

    def start(self) -> None:
        """Begin to renew the lease."""
        for each in self._threads:
            each.start()

    def stop(self) -> None:
        """End the lease; another server may lead at once."""
        self._stopped.set()
        for each in self._threads:
            each.join()
        try:
            self._leases.revoke(self._lease)
        except SharedFault as error:
            _log.warning("lease_not_revoked", error=str(error))

    def holds(self) -> bool:
        """Return whether this server may lead."""
        return self._tenure.holds(clock())

    def deposed(self) -> None:
        """End, as another server leads."""
        self._lost("another control server leads")

    def _lost(self, reason: str) -> None:
        if self._ending.acquire(blocking=False):
            _log.error("lease_lost", reason=reason)
            self._end()

    def _watch(self) -> None:
        while not self._stopped.wait(LOOKS_S):
            if not self.holds():
                self._lost("the lease was not renewed in time")
                return

    def _renew(self) -> None:
        pause = 0.0
        while not self._stopped.wait(max(pause, self._tenure.renew_at - clock())):
            asked = clock()
            pause = LOOKS_S
            try:
                ttl_s = self._leases.keep(self._lease)
            except Unreachable:
                continue  # of etcd, the next member is asked; ``_watch`` ends it where none answers
            except SharedFault as error:
                _log.warning("lease_not_renewed", error=str(error))
                continue
            if ttl_s <= 0:
                self._lost("the lease has ended")
                return
            self._tenure.renewed(asked, ttl_s)
            pause = 0.0
