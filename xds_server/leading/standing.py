"""A control server's life beside others: it follows until it may lead.

Rules:

1. A follower reads the head every ``POLL_S`` seconds, so that it does not depend on a watch, which
   compaction or a lost member ends. It claims the lead when no server has it.
2. A leader begins as a control server does that was started again, with what the history has.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
import time
from typing import TYPE_CHECKING, Final

import structlog

from tidegate_common.unix import is_unix
from xds_server.admin.operators import group_id
from xds_server.fleet.model.fields import join_host_port, split_host_port
from xds_server.fleet.store import RevisionStore
from xds_server.fleet.stored.shared import SharedFault, SharedHistory
from xds_server.leading.keeper import Keeper, clock
from xds_server.leading.refusing import Leader, RefusingPorts
from xds_server.leading.seen import SeenFile
from xds_server.leading.stores import opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tidegate_common.tls.settings import Secured
    from xds_server.settings import ControlSettings

POLL_S: Final = 0.5
PAUSE_S: Final = 0.1
"""Seconds before a swap of unknown outcome is repeated."""

MAX_BYTES: Final = 32 * 2**20
"""Most bytes of serialized fleets in a shared history: an image is written as a whole."""

EXIT_LOST: Final = 4
"""The lease was lost: what supervises the process starts it again."""

_log = structlog.get_logger(__name__)


@contextlib.asynccontextmanager
async def standing(
    settings: ControlSettings, secured: Secured | None, stopped: asyncio.Event
) -> AsyncIterator[RevisionStore | None]:
    """Follow, and return the store once this server leads; ``None`` = it was stopped before.

    Raises:
        StoreError, TlsError: The history cannot be used by this version, or a file for etcd cannot.
        OSError: An address cannot be bound.
    """
    async with contextlib.AsyncExitStack() as stack:
        server = _Server(settings)
        stack.callback(server.close)
        leader = Leader()
        group = group_id(settings.admin_group)
        async with RefusingPorts(settings, secured, group, leader, contextlib.AsyncExitStack()):
            _log.info("control_server_follows", store=settings.store)
            while not await server.claimed(leader):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), POLL_S)
                if stopped.is_set():
                    yield None
                    return
        stack.push_async_callback(asyncio.to_thread, server.leave)
        store = await asyncio.to_thread(server.lead)
        stack.callback(store.close)
        _log.info("control_server_leads", store=settings.store, epoch=server.epoch)
        yield store


class _Server:
    """This server as one of several.

    Args:
        settings: Start options.

    Raises:
        StoreError, TlsError: A file cannot be used.
    """

    def __init__(self, settings: ControlSettings) -> None:
        self._store = opened(settings)
        admin = _reachable(settings.admin)
        self._own = json.dumps({"name": socket.gethostname(), "admin": admin}).encode()
        self._state = settings.state
        self._keeper: Keeper | None = None
        self._fault = ""
        self._history = SharedHistory(
            self._store,
            settings.store or "",
            secrets.token_hex(8),
            lambda: self._keeper is not None and self._keeper.holds(),
            self._deposed,
            lambda: time.sleep(PAUSE_S),
            SeenFile(settings.state),
            accepts_loss=settings.accept_loss,
        )

    @property
    def epoch(self) -> int:
        """The epoch of the history."""
        return 0 if self._history.head is None else self._history.head.epoch

    async def claimed(self, leader: Leader) -> bool:
        """Read what is new; return True if this server leads from now on, as none did.

        Args:
            leader: Gets who leads.
        """
        known = ("", "")
        try:
            known = await asyncio.to_thread(self._led_by)
            await asyncio.to_thread(self._history.follow)
            if not known[0]:
                await asyncio.to_thread(self._claim)
            self._fault = ""
        except SharedFault as error:
            if not self._fault:
                _log.warning("store_not_followed", error=str(error))
            self._fault = str(error)
        leader.name, leader.admin = known
        leader.fault = self._fault
        return self._keeper is not None

    def lead(self) -> RevisionStore:
        """Return the store, which this server writes from now on.

        Raises:
            StoreError: It cannot be used.
        """
        return RevisionStore(self._state, max_bytes=MAX_BYTES, shared=self._history)

    def leave(self) -> None:
        """End the lease."""
        if self._keeper is not None:
            self._keeper.stop()

    def close(self) -> None:
        """Close the connections."""
        self._store.close()

    def _deposed(self) -> None:
        if self._keeper is not None:
            self._keeper.deposed()

    def _led_by(self) -> tuple[str, str]:
        """Return the leader's name and address; empty = there is none."""
        found = self._store.leader()
        if found is None:
            return "", ""
        try:
            of = json.loads(found)
            return str(of["name"]), str(of["admin"])
        except (ValueError, KeyError, TypeError):
            return "another control server", ""

    def _claim(self) -> None:
        """Take the lead if no server has it."""
        asked = clock()
        lease = self._store.grant(self._store.lease_s)
        try:
            if self._store.claim(self._own, lease):
                self._keeper = Keeper(self._store, lease, asked, _end)
                self._keeper.start()
        finally:
            if self._keeper is None:  # also where the outcome is unknown
                self._store.revoke(lease)


def _end() -> None:
    """End the process at once: nothing that it could still say is to be believed."""
    with contextlib.suppress(OSError):  # a full disk under the log
        sys.stderr.flush()
    os._exit(EXIT_LOST)


def _reachable(admin: str) -> str:
    """Return the first address of these that other machines may reach; empty = none."""
    for each in admin.split(","):
        if not is_unix(each):
            host, port = split_host_port(each)
            return join_host_port(socket.gethostname() if host in {"0.0.0.0", "::"} else host, port)  # noqa: S104 - compared, not bound
    return ""
