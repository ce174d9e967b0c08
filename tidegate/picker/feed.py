"""Pools out of a fleet file, for a picker without a control server.

Rules:

1. The file is watched, loaded and judged as the control server does it; pools are converted through
   the message that pickers get from that server.
2. A file that cannot be used changes nothing: the pools in force stay. The fault is logged once,
   and shown until the file is in order.
3. A replica's incarnation is a hash of its addresses, so that all workers of a picker, which read
   the file each by itself, agree on it without a store. A replica that an edit adds has joined
   then; those of the first file are warm.
4. What only Envoy does with a fleet (routes, limits, timeouts) is not done at all.
5. Replicas that sources find join and leave as with a control server (``tidegate.picker.finding``).
   The picker is ready once each pool has a replica; ``FIRST_S`` after the file was read one pool is
   enough, as a source may be silent for long, or that all sources have answered.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import structlog

from ext_proc.control.pools import pool_of
from tidegate.picker.finding import EVERY_S, ReplicaFinder
from tidegate_api.fleet.v1 import pool_pb2
from xds_server.applications.discovery.file import FileWatch
from xds_server.fleet.load import load_text
from xds_server.fleet.members.members import Members, standing
from xds_server.fleet.revision import next_incarnations
from xds_server.fleet.view import View
from xds_server.resources.pools import pool_resource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ext_proc.control.source import Take
    from ext_proc.routing.values.pool import Pool
    from xds_server.fleet.model.fleet import Fleet

FIRST_S: Final = 10.0
"""Longest time for which a picker waits for the first replica of each pool, seconds."""
MAX_FAULT_CHARS: Final = 4096
"""Maximum characters of a fault that are kept."""

_log = structlog.stdlib.get_logger("tidegate.picker")


class FileFeed:
    """Feeds a picker from a fleet file; see the module's rules.

    Args:
        path: The fleet file.
        folder: A folder that all processes of the picker share.
        take: Puts a set of pools in force; an exception rejects the set.
        seed: Seed of prompt hashes, the same for all workers of a picker.
        dns: Name servers, ``ip:port``; those of ``/etc/resolv.conf`` if empty.
        wall_clock: Unix seconds.
    """

    def __init__(
        self,
        path: Path,
        folder: Path,
        take: Take,
        *,
        seed: int,
        dns: Sequence[str] = (),
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._take = take
        self._seed = seed
        self._wall_clock = wall_clock
        self._fleet: Fleet | None = None
        self._known: Mapping[str, tuple[int, int]] = {}
        self._members = Members()
        self._left_out: tuple[str, ...] = ()
        self._usable = False
        """A pool has a replica, or nothing is to be found."""
        self._fault: str | None = None
        self._taken_unix_s: float | None = None
        self._watch = FileWatch(path, self._on_text, self._unreadable)
        self._finding = ReplicaFinder(folder, self, dns)
        self._turn = asyncio.Lock()
        """Held while pools are put in force."""
        self._loaded = asyncio.Event()
        self.ready = asyncio.Event()
        """Set once pools are known; it stays set."""

    @property
    def written(self) -> Fleet:
        """The fleet of the file.

        Raises:
            RuntimeError: It was not read yet.
        """
        if self._fleet is None:
            raise RuntimeError("there is no fleet yet")
        return self._fleet

    async def run(self) -> None:
        """Follow the file and what is found until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch.run())
            await self._loaded.wait()
            tasks.create_task(self._finding.run())
            await asyncio.sleep(FIRST_S)
            # Another process may be the one that finds, so there is no event to wait for.
            while not self._usable and not self._finding.answered:  # noqa: ASYNC110
                await asyncio.sleep(EVERY_S)
            self.ready.set()

    async def look(self) -> None:
        """Look at the file once; a change counts when it is found unchanged a second time."""
        await self._watch.look()

    async def publish_members(self, members: Members) -> None:
        """Put the file's fleet in force with these replicas.

        Raises:
            PoolError: The pools make no sense to pickers; those in force stay.
        """
        async with self._turn:
            await self._apply(self.written, self._known, members)

    async def _on_text(self, text: str) -> None:
        async with self._turn:
            try:
                fleet, known = await asyncio.to_thread(self._load, text)
                await self._apply(fleet, known, self._members)
            except Exception as error:  # noqa: BLE001 - rule 2: whatever is wrong with it
                self._fault = str(error)[:MAX_FAULT_CHARS] or type(error).__name__
                _log.error("fleet_file_refused", error=self._fault)
                return
            self._fault = None
            self._taken_unix_s = self._wall_clock()
            _log.info("fleet_file_applied", pools=len(fleet.pools))
            self._loaded.set()
        self._finding.notify()

    def _unreadable(self, fault: str) -> None:
        self._fault = fault[:MAX_FAULT_CHARS]
        _log.error("fleet_file_unreadable", error=self._fault)

    def _load(self, text: str) -> tuple[Fleet, Mapping[str, tuple[int, int]]]:
        fleet = load_text(text, str(self._path))
        now_ms = int(self._wall_clock() * 1000)
        return fleet, next_incarnations(self._fleet, self._known, fleet, 0, now_ms)

    async def _apply(
        self, fleet: Fleet, known: Mapping[str, tuple[int, int]], members: Members
    ) -> None:
        """Put a fleet in force with its members; an exception changes nothing."""
        with_members = members.published(fleet)
        out = standing(with_members.fleet, {})  # nobody brings standbys in
        pools = await asyncio.to_thread(pools_of, out, known, self._seed, with_members.incarnations)
        self._take(pools)
        self._fleet, self._known, self._members = fleet, known, members
        self._left_out = with_members.left_out
        # A fleet that finds nothing is whole as it is written.
        self._usable = any(pool.endpoints for pool in pools.values()) or not any(
            pool.finds for pool in fleet.pools
        )
        if all(pool.endpoints for pool in pools.values()):
            self.ready.set()

    def state(self) -> dict[str, Any]:
        """Return file and fault, for debugging."""
        return {
            "file": str(self._path),
            "refused": self._fault,
            "taken_unix_s": self._taken_unix_s,
            "pools": [] if self._fleet is None else [pool.name for pool in self._fleet.pools],
            "left_out": list(self._left_out),
            "found": self._finding.state(),
        }


def pools_of(
    fleet: Fleet,
    known: Mapping[str, tuple[int, int]],
    seed: int,
    found: Mapping[str, tuple[int, int]] = MappingProxyType({}),
) -> dict[str, Pool]:
    """Return the pickers' pools of a fleet.

    Args:
        fleet: The fleet, with its members in place.
        known: Per written replica a number that is not used, and the Unix milliseconds of its
            joining.
        seed: Seed of prompt hashes.
        found: Incarnation and joining of the members.

    Raises:
        PoolError: A pool makes no sense to pickers.
    """
    addresses = {each.id: (each.http, each.grpc) for pool in fleet.pools for each in pool.endpoints}
    incarnations = {
        endpoint: (zlib.crc32(repr(addresses[endpoint]).encode()) or 1, joined)
        for endpoint, (_, joined) in known.items()
        if endpoint in addresses
    }
    view = View(fleet, {**incarnations, **found}, seed=seed)
    return {
        pool.name: pool_of(pool_pb2.Pool.FromString(pool_resource(view, pool)))
        for pool in fleet.pools
    }
