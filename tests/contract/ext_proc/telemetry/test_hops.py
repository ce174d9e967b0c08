"""Round trips are measured at real sockets."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from ext_proc.routing.state.hops import LEAST_S, ZoneHops
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.telemetry.hops import HopMeter


def pools(*addresses):
    """Return a pool with a replica per address, in zones ``z0``, ``z1``, …."""
    endpoints = tuple(
        Endpoint(EndpointKey(f"r{number}", 1), "s", address, None, zone=f"z{number}")
        for number, address in enumerate(addresses)
    )
    return {"p": Pool("p", variants=(Variant("s", 1),), endpoints=endpoints, prefer_zone=True)}


class Told:
    """Hops that say when a round of measurements has come; compiled ones have no subclass."""

    def __init__(self) -> None:
        self.hops = ZoneHops("z0")
        self.zone = self.hops.zone
        self.rounds: asyncio.Queue[set[str]] = asyncio.Queue()

    def measured(self, trips, now):
        """Take a round."""
        self.hops.measured(trips, now)
        self.rounds.put_nowait({zone for zone, _ in trips})


async def test_replicas_that_are_reached_have_a_round_trip():
    """A dead one has none, so its zone costs the least; a changed pool is measured at once."""
    alive = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    address = f"127.0.0.1:{alive.sockets[0].getsockname()[1]}"
    told = Told()
    meter = HopMeter(told)
    task = asyncio.create_task(meter.run())
    try:
        async with asyncio.timeout(60):
            meter.set_pools(pools(address, "127.0.0.1:1"))
            assert await told.rounds.get() == {"z0"}
            found = pools(address, address)
            meter.set_pools(found)
            assert await told.rounds.get() == {"z0", "z1"}
    finally:
        task.cancel()
        alive.close()
        await asyncio.gather(task, return_exceptions=True)
    assert told.hops.describe()["zone"] == "z0"
    assert told.hops.describe()["measured_s"]["z1"] >= LEAST_S


def test_a_picker_without_a_zone_says_so_once():
    """Operators learn what is missing; nothing is measured."""
    meter = HopMeter(ZoneHops())
    with capture_logs() as logs:
        meter.set_pools(pools("127.0.0.1:1"))
        meter.set_pools(pools("127.0.0.1:2"))
    assert [(each["event"], each["pools"]) for each in logs] == [("zone_unknown", ["p"])]
