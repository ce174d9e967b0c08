"""Measures round trips to replicas of all zones, for the price of a hop (``routing.state.hops``).

Rules:

1. It is measured where a pool prefers the picker's zone (``prefer_zone``) and sets no price. Each
   worker measures by itself.
2. A round trip is the time in which a TCP connection opens: the replica's kernel answers, so how
   busy the replica is does not matter, and it cannot answer before it was asked. The connection is
   closed without a request.
3. Every ``EVERY_S``, ``TRIES`` times one after another, the first ``SAMPLE`` replicas of each zone
   are asked, of at most ``ZONES`` zones. One that is not reached within ``TIMEOUT_S`` has none.
4. A picker without a zone says once that such a pool needs one.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ext_proc.routing.state.hops import ZoneHops
    from ext_proc.routing.values.pool import Pool

EVERY_S: Final = 10.0
TIMEOUT_S: Final = 1.0
TRIES: Final = 3
SAMPLE: Final = 5
ZONES: Final = 16

_log = structlog.stdlib.get_logger("ext_proc.telemetry")


class HopMeter:
    """Measures the hops of one picker.

    Args:
        hops: Takes the round trips.
    """

    def __init__(self, hops: ZoneHops) -> None:
        self._hops = hops
        self._targets: list[tuple[str, str]] = []
        self._changed = asyncio.Event()
        self._said = False

    def set_pools(self, pools: Mapping[str, Pool]) -> None:
        """Measure the round trips to the replicas of these pools from now on."""
        preferring = [pool for pool in pools.values() if pool.prefer_zone]
        if preferring and not self._hops.zone and not self._said:
            self._said = True
            _log.warning(
                "zone_unknown",
                pools=[pool.name for pool in preferring],
                fix="give the picker its --zone; until then it prefers no zone",
            )
        targets = targets_of(preferring) if self._hops.zone else []
        if targets != self._targets:
            self._targets = targets
            self._changed.set()

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            self._changed.clear()
            if targets := self._targets:
                self._hops.measured(await _trips(targets), time.monotonic())
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S if self._targets else None):
                    await self._changed.wait()


def targets_of(pools: Iterable[Pool]) -> list[tuple[str, str]]:
    """Return zone and address of the replicas that are asked (rules 1 and 3)."""
    found: dict[str, list[str]] = {}
    for pool in pools:
        for each in () if pool.zone_hop_s else pool.endpoints:
            address = each.http or each.grpc
            known = found.setdefault(each.zone, []) if len(found) < ZONES else found.get(each.zone)
            if known is not None and address and len(known) < SAMPLE and address not in known:
                known.append(address)
    return [(zone, address) for zone, addresses in found.items() for address in addresses]


async def _trips(targets: Iterable[tuple[str, str]]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for zone, address in targets:
        host, _, port = address.rpartition(":")
        for _ in range(TRIES):
            begun = time.perf_counter()
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            except (OSError, TimeoutError):
                break
            took = time.perf_counter() - begun
            found[zone, address] = min(took, found.get((zone, address), took))
            writer.close()
    return found
