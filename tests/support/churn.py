"""Replicas that come and go while requests run: what happens to their sources, and who ends when.

Rules:

1. A replica that is taken out of its source serves on until the control server has had it no longer
   for ``DRAINED_S``; then it stops. A request that it still has then is a fault.
2. A replica that dies loses its port and all connections at once. Only a request that it had then
   may fail.
3. All are in one pool, at loopback addresses; ``found`` is what the control server has.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

from tidegate_api.admin.v1 import admin_pb2 as api

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from support.churn_replicas import ChurnReplica, Driver
    from support.churn_stack import ChurnStack, Load

LOOK_S = 0.1
DRAINED_S = 2.0
"""Seconds after which a replica that has left stays away: what the control server has seen of the
source, and the reports of pickers, may be as old."""
MENDED = 0.15
"""Chance of a broken source to be in order again at each event."""
LEAST = 3
"""Fewest living replicas that a source lists."""
MOST = 8


class Churn:
    """Random events of sources, and what must hold meanwhile.

    Args:
        stack: The stack.
        drivers: Its sources.
        rng: Chance.
    """

    def __init__(self, stack: ChurnStack, drivers: Sequence[Driver], rng: random.Random) -> None:
        self._stack = stack
        self._drivers = drivers
        self._rng = rng
        self._numbers = 100
        self.leaving: dict[str, tuple[ChurnReplica, Driver]] = {}
        """Replicas that were taken out of their source, by address."""
        self.found: dict[str, bool] = {}
        """Address -> whether it is active, as the control server said last."""
        self._drains: dict[str, float] = {}
        """Address -> since when it drains, as the control server said."""
        self._away: dict[str, float] = {}
        """Address -> since when the control server does not have it."""
        self.dead: list[tuple[float, set[str]]] = []
        """Time, and addresses that were active without a replica there, as they changed."""
        self.faults: list[str] = []
        self.happened: Counter[str] = Counter()
        self.gone: list[ChurnReplica] = []
        """Replicas that died or were stopped."""
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._looking = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        for replica in (*(each for each, _ in self.leaving.values()), *self._listed()):
            replica.stop()

    def _listed(self) -> list[ChurnReplica]:
        return [each for driver in self._drivers for each in driver.listed.values()]

    async def _look(self) -> None:
        """Follow what the control server has, and stop what has left."""
        while True:
            answer = await self._stack.ask("GetFleet", api.GetFleetRequest())
            if answer is not None:
                self.found = {each.http: not each.draining for each in answer.found}
                if not any(self.found.values()):
                    self.faults.append("no active replica")
                self._note_dead()
                busy = {each.http for each in answer.found if answer.in_flight.get(each.id)}
                self._end(busy)
            await asyncio.sleep(LOOK_S)

    def _note_dead(self) -> None:
        living = {each.address for each in self._listed() if each.alive}
        living |= {address for address, (each, _) in self.leaving.items() if each.alive}
        dead = {address for address, is_active in self.found.items() if is_active} - living
        if not self.dead or dead != self.dead[-1][1]:
            self.dead.append((time.monotonic(), dead))

    def _end(self, busy: set[str]) -> None:
        """Stop replicas that are drained: gone or, where the source tells their end, idle."""
        now = time.monotonic()
        for address, (replica, driver) in list(self.leaving.items()):
            drains = self.found.get(address) is False
            if not drains:
                self._drains.pop(address, None)
            if address in self.found:
                self._away.pop(address, None)
            since = self._away if address not in self.found else self._drains
            lasting = now - since.setdefault(address, now) > DRAINED_S
            idle = drains and address not in busy and driver.tells_ends
            if not lasting or (address in self.found and not idle):
                continue
            for known in (self.leaving, self._drains, self._away):
                known.pop(address, None)
            left = replica.stop()
            driver.ended(replica)
            self.gone.append(replica)
            self.happened["stopped after its drain"] += 1
            if left:
                self.faults.append(f"{replica.name} was let go with {len(left)} requests")

    async def event(self) -> None:
        """Let one thing happen to one source."""
        driver, draw = self._rng.choice(list(self._drivers)), self._rng.random()
        for each in self._drivers:
            if each.broken and self._rng.random() < MENDED:
                await each.mend()
        if draw < 0.35:
            await self._add(driver)
        elif draw < 0.70:
            await self._remove(driver)
        elif draw < 0.78:
            await self._back(driver)
        elif draw < 0.88:
            await self._die(driver)
        else:
            self.happened["the source breaks or is mended"] += 1
            await driver.fault(self._rng)

    async def _add(self, driver: Driver) -> None:
        if len(driver.listed) >= MOST:
            return
        self._numbers += 1
        replica = await driver.make(self._numbers, self._rng)
        await replica.start()
        driver.listed[replica.name] = replica
        self.happened["added"] += 1
        await driver.say()

    async def _remove(self, driver: Driver) -> None:
        if len(driver.listed) <= LEAST:
            return
        replica = driver.listed.pop(self._rng.choice(_not_last(driver)))
        self.leaving[replica.address] = (replica, driver)
        self.happened["removed"] += 1
        await driver.say()

    async def replace(self, driver: Driver) -> None:
        """Let a source list as many new replicas at once, and none of before."""
        old = list(driver.listed.values())
        driver.listed.clear()
        for _ in old:
            self._numbers += 1
            replica = await driver.make(self._numbers, self._rng)
            await replica.start()
            driver.listed[replica.name] = replica
        self.leaving.update({each.address: (each, driver) for each in old})
        self.happened["replaced whole"] += 1
        await driver.say()

    async def _back(self, driver: Driver) -> None:
        """List a replica again that has not stopped yet."""
        mine = [replica for replica, of in self.leaving.values() if of is driver]
        if driver.tells_ends or not mine or len(driver.listed) >= MOST:
            return
        replica = self._rng.choice(mine)
        del self.leaving[replica.address]
        driver.listed[replica.name] = replica
        self.happened["listed again"] += 1
        await driver.say()

    async def _die(self, driver: Driver) -> None:
        """End a replica that others can stand in for; its source learns of it later."""
        living = {each.address for each in self._listed()}
        active = {address for address, is_active in self.found.items() if is_active} & living
        mine = [driver.listed[name] for name in _not_last(driver)]
        mine = [each for each in mine if each.address in active]
        calm = not any(each.broken for each in self._drivers)
        if len(active) < 4 or len(driver.listed) <= LEAST or not mine or not calm:
            return
        replica = self._rng.choice(mine)
        replica.stop()
        self.gone.append(replica)
        self.happened["died"] += 1
        await asyncio.sleep(self._rng.choice([0.0, 0.2, 1.0]))
        del driver.listed[replica.name]
        driver.ended(replica)
        await driver.say()

    def write_figures(self, sources: str, load: Load) -> None:
        """Write what happened; pytest shows it with ``-rP``."""
        sys.stdout.write(
            f"{sources}: {dict(self.happened)}; {load.answered} answered, "
            f"{len(load.failed)} failed, slowest {load.slowest_s:.2f} s; "
            f"unexplained {self.unexplained(load)}; {self.faults}; "
            f"active without a replica {self.dead if self.unexplained(load) else len(self.dead)}\n"
        )

    def unexplained(self, load: Load) -> dict[str, str]:
        """Return the failed requests that no replica had when it died."""
        lost = {number for each in self.gone for number in each.lost}
        return {number: said for number, said in load.failed.items() if number not in lost}

    async def settle(self, timeout_s: float = 90.0) -> None:
        """Mend all sources; wait until control server, Envoy and picker have what they list.

        Raises:
            AssertionError: They have something else after ``timeout_s``.
        """
        for driver in self._drivers:
            await driver.mend()
        wanted = {each.address for each in self._listed()}
        seen: dict[str, Any] = {}
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if wanted <= {address for address, is_active in self.found.items() if is_active}:
                # Earlier it could let go the last that a broken source has left.
                await self._stack.ask("Confirm", api.ConfirmRequest(pool="llm"))
            seen["control"] = dict(self.found)
            seen["envoy"] = await self._stack.envoy_hosts()
            endpoints = await self._stack.picker_endpoints()
            seen["picker"] = sorted(endpoints)
            seen["picker draining"] = [i for i, one in endpoints.items() if one.get("draining")]
            if (
                seen["control"] == dict.fromkeys(wanted, True)
                and seen["envoy"] == wanted
                and len(endpoints) == len(wanted)
                and not seen["picker draining"]
            ):
                return
            await asyncio.sleep(0.5)
        status = await self._stack.ask("GetStatus", api.GetStatusRequest())
        raise AssertionError(f"wanted {sorted(wanted)}, found {seen}, {status}")


async def run_events(
    churn: Churn, stack: ChurnStack, count: int, pause: Callable[[], float]
) -> None:
    """Let ``count`` events happen; the control server is killed in the middle of them."""
    killed: asyncio.Task[None] | None = None
    for number in range(count):
        await churn.event()
        if number == count // 2:
            killed = asyncio.create_task(stack.restart_control_server(1.0))
        await asyncio.sleep(pause())
    if killed is not None:
        await killed


def _not_last(driver: Driver) -> list[str]:
    """Return names of replicas that share their kind's DNS name, sorted.

    A DNS name without records is in trouble, and the last replicas that it had stay.
    """
    kinds = Counter(name[0] for name in driver.listed)
    return [name for name in sorted(driver.listed) if kinds[name[0]] > 1]
