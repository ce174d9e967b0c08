"""Replicas that a picker without a control server finds by itself.

Rules:

1. The processes of one picker share a private folder. The one that holds the folder's lock runs
   sources and admission as the control server does, and writes the members into the folder. The
   others follow that file, so that all have the same replicas with the same incarnations.
2. Where the process with the lock ends, another gets it, and goes on with those members.
3. Requests in flight are not reported: a replica that leaves drains for ``membership.drain``.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import time
from typing import TYPE_CHECKING, Any, Final

import structlog

from xds_server.applications.discovery.file import Stamp, stamp_of
from xds_server.applications.discovery.membership import Clocks, Membership
from xds_server.applications.discovery.readiness import Readiness
from xds_server.applications.discovery.sources.resolver import Resolver
from xds_server.applications.discovery.table import SourceTools
from xds_server.fleet.members.members import Members
from xds_server.fleet.members.stored import dump, load
from xds_server.fleet.model.fields import split_host_port

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from xds_server.applications.discovery.membership import FleetInForce

EVERY_S: Final = 0.2
"""Seconds between two looks at the lock and at the members of another process."""
MAX_BYTES: Final = 2**26
"""Longest text of members that is read."""

MAX_SHOWN: Final = 100
"""Most ids of held replicas of a pool that are shown."""
_REMEDY: Final = "list their ids in `drained` of pool {pool} in the fleet file"

_log = structlog.stdlib.get_logger("tidegate.picker")


class ReplicaFinder:
    """Finds or follows; see the module's rules.

    Args:
        folder: The folder that all processes of the picker share.
        fleet: What is told of the members.
        dns: Name servers, ``ip:port``; those of ``/etc/resolv.conf`` if empty.
    """

    def __init__(self, folder: Path, fleet: FleetInForce, dns: Sequence[str] = ()) -> None:
        self._lock_file, self._file = folder / "lock", folder / "members"
        self._mark = folder / "answered"
        """Exists once all sources have answered."""
        self._fleet = fleet
        self._tools = SourceTools(
            Resolver([split_host_port(each) for each in dns]),
            random.random,
        )
        self._membership: Membership | None = None
        self._seen: Stamp | None = None

    def notify(self) -> None:
        """Signal that the file's fleet is another one."""
        if self._membership is not None:
            self._membership.notify()

    @property
    def answered(self) -> bool:
        """Whether each source has answered, in whichever process finds."""
        sources = [] if self._membership is None else self._membership.sources()
        if sources and all(each.endpoints is not None for each in sources):
            self._mark.touch()
        return self._mark.exists()

    async def run(self) -> None:
        """Follow the members until the lock is free, then find them, until cancelled."""
        descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _locked(descriptor):
                await self._follow()
                await asyncio.sleep(EVERY_S)
            await self._find(await self._follow() or self._read() or Members())
        finally:
            os.close(descriptor)

    async def _find(self, known: Members) -> None:
        clocks = Clocks(time.monotonic, lambda: time.time_ns() // 1_000_000)
        async with Readiness() as is_ready:
            self._membership = Membership(
                self._fleet,
                self._tools,
                clocks,
                lambda: None,
                is_ready,
                self._write,
                remedy=_REMEDY,
            )
            await self._membership.run(known)

    async def _follow(self) -> Members | None:
        """Put another process's members in force if they have changed; return them."""
        stamp = stamp_of(self._file)
        if stamp is None or stamp == self._seen:
            return None
        members = self._read()
        if members is not None:
            try:
                await self._fleet.publish_members(members)
            except Exception:  # noqa: BLE001 - what is in force stays; the next look tries again
                _log.exception("membership_not_published")
                return None
            self._seen = stamp
        return members

    def _read(self) -> Members | None:
        with contextlib.suppress(OSError, ValueError), self._file.open("rb") as file:
            return load(file.read(MAX_BYTES).decode())
        return None

    async def _write(self, members: Members) -> None:
        made = self._file.with_suffix(".new")
        try:
            made.write_text(dump(members))
            made.rename(self._file)
        except OSError as error:
            _log.warning("membership_not_stored", error=str(error))

    def state(self) -> dict[str, Any]:
        """Return sources and held replicas, for debugging; empty in a process that follows."""
        membership = self._membership
        if membership is None:
            return {"finds": False}
        return {
            "finds": True,
            "sources": [each._asdict() for each in membership.sources()],
            "pools": [
                {
                    "pool": each.pool,
                    **each.counts,
                    "hold": None if each.hold is None else each.hold.ids[:MAX_SHOWN],
                    "remedy": None if each.hold is None else _REMEDY.format(pool=each.pool),
                    "unfit": each.unfit,
                    "nothing": each.nothing or None,
                }
                for each in membership.pools()
            ],
        }


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
