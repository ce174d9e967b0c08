"""Replicas that come and go while requests run: a real stack, its load, and who ends when.

Rules:

1. A replica that is taken out of its source serves on until the control server has had it no longer
   for ``DRAINED_S``; then it stops. A request that it still has then is a fault.
2. A replica that dies loses its port and all connections at once. Only a request that it had then
   may fail.
3. All are in one pool, at loopback addresses; ``found`` is what the control server has.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

import aiohttp
import grpc

from support.replicas import PATIENT
from tidegate.stack.local import CONTROL_SERVER, LocalStack
from tidegate.stack.tritons.replica import TritonReplica
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.admin.v1 import admin_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

GENERATE = "/v2/models/toy-llm/generate"
NUMBER = b"x-churn"
_LOOK = b"POST /v2/repository/index "
"""A picker asks for its models."""
LOOK_S = 0.1
DRAINED_S = 2.0
"""Seconds after which a replica that has left stays away: what the control server has seen of the
source, and the reports of pickers, may be as old."""
MENDED = 0.15
"""Chance of a broken source to be in order again at each event."""
LEAST = 3
"""Fewest living replicas that a source lists."""
MOST = 8


class ChurnReplica:
    """A replica over HTTP/1.1 that counts what it has open.

    Args:
        name: What its source calls it.
        address: ``ip:port``.
        rng: How long its answers take.
    """

    def __init__(self, name: str, address: str, rng: random.Random) -> None:
        self.name = name
        self.address = address
        self._rng = rng
        self.ready = True
        """Whether it says that its model is ready."""
        self.hold_s: float | None = None
        """How long its answers take; ``None`` = as chance has it."""
        self.open: set[str] = set()
        """Numbers of the requests that it has."""
        self.lost: set[str] = set()
        """Those that it had when it died."""
        self.answered = 0
        self._server: asyncio.Server | None = None
        self._peers: set[asyncio.StreamWriter] = set()

    @property
    def alive(self) -> bool:
        """Whether it serves."""
        return self._server is not None

    async def start(self) -> None:
        """Serve."""
        host, _, port = self.address.rpartition(":")
        self._server = await asyncio.start_server(self._serve, host, int(port), reuse_address=True)

    def stop(self) -> set[str]:
        """End; return the requests that it still had."""
        left = set(self.open)
        if self._server is not None:
            self._server.close()
            self._server = None
        for peer in self._peers:
            peer.transport.abort()
        self.lost |= left
        return left

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._peers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = dict(
                    line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line
                )
                await reader.readexactly(int(fields.get(b"content-length", b"0")))
                status = b"200 OK" if self.ready else b"400 Bad Request"
                if head.startswith(b"POST"):
                    status = b"200 OK"
                if head.startswith(b"POST") and not head.startswith(_LOOK):
                    await self._infer(fields.get(NUMBER, b"").decode())
                text = b'{"text_output": "%s"}' % self.name.encode()
                kind = b"content-type: application/json\r\n"
                length = b"content-length: %d\r\n\r\n" % len(text)
                writer.write(b"HTTP/1.1 " + status + b"\r\n" + kind + length + text)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._peers.discard(writer)
            writer.transport.abort()

    async def _infer(self, number: str) -> None:
        self.open.add(number)
        try:
            draw = self._rng.random()
            drawn_s = 1.0 if draw > 0.99 else 0.05 * draw
            await asyncio.sleep(drawn_s if self.hold_s is None else self.hold_s)
            self.answered += 1
        finally:
            self.open.discard(number)


class Driver(Protocol):
    """What a source of replicas says, and how it breaks."""

    listed: dict[str, ChurnReplica]
    """The replicas that it should list, by name."""
    tells_ends: bool
    """It lists a replica that ends until it has ended, and never again."""

    def settings(self) -> dict[str, Any]:
        """Return fields of the pool."""

    async def make(self, number: int, rng: random.Random) -> ChurnReplica:
        """Return a new replica; it is not started."""

    async def say(self) -> None:
        """Say what is listed now, unless it is broken."""

    def ended(self, replica: ChurnReplica) -> None:
        """Take note that a replica which was taken out serves no longer."""

    async def fault(self, rng: random.Random) -> None:
        """Break, or be in order again."""

    async def mend(self) -> None:
        """Be in order, and say what is listed."""

    @property
    def broken(self) -> bool:
        """Whether it is broken."""


@dataclass
class Load:
    """Requests on some connections, each sequential."""

    url: str
    connections: int = 6
    pause_s: float = 0.02
    answered: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Number of a request -> what became of it, and when."""
    slowest_s: float = 0.0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._run(n)) for n in range(self.connections)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, which: int) -> None:
        timeout = aiohttp.ClientTimeout(total=60)
        turn = 0
        async with aiohttp.ClientSession(timeout=timeout) as http:
            while True:
                turn += 1
                number = f"{which}-{turn}"
                body = {"text_input": f"{number} " * 20, "max_tokens": 1}
                began = time.monotonic()
                try:
                    async with http.post(
                        self.url + GENERATE, json=body, headers={NUMBER.decode(): number}
                    ) as answer:
                        said = await answer.text()
                        if answer.status == 200:
                            self.answered += 1
                        else:
                            reason = answer.headers.get("x-tidegate-reason")
                            self.failed[number] = f"{began:.2f}: {answer.status} {reason} {said}"
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    self.failed[number] = f"{began:.2f}: {type(error).__name__} {error}"
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                await asyncio.sleep(self.pause_s)


class ChurnStack(LocalStack):
    """Control server, picker and Envoy as processes; the control server finds the replicas.

    Args:
        drivers: The sources of the pool.
        dns: ``ip:port`` of the name server.
        state: Folder of the control server's revisions.
    """

    def __init__(self, drivers: Sequence[Driver], dns: str, state: Path) -> None:
        self._dns = dns
        names: list[dict[str, Any]] = []
        sources: list[dict[str, Any]] = []
        for driver in drivers:
            given = driver.settings()
            names += given.get("endpoints", [])
            sources += given.get("endpoints_from", [])

        def change(fleet: dict[str, Any]) -> None:
            fleet["pickers"]["timeout"] = PATIENT
            (pool,) = fleet["pools"]
            pool |= {
                "variants": [{"name": "stable"}],
                "endpoints": names,
                "endpoints_from": sources,
                "membership": {"hold": "8s", "drain": "20s", "damping": "2s"},
                "slow_start": {"window": "1s"},
                "health": {"interval": "500ms", "timeout": PATIENT, "unhealthy_after": 1},
            }

        (known, *_) = (each for driver in drivers for each in driver.listed.values())
        first = TritonReplica(
            name=known.name,
            http=known.address,
            grpc="127.0.0.1:1",
            metrics="127.0.0.1:1",
            variant="stable",
            models={"toy-llm": ("1",)},
        )
        super().__init__(replicas=[first], models=("toy-llm",), fleet=change, state=state)

    async def _launch_service(self, name: str, module: str, *flags: str, **more: Any) -> None:
        if name == CONTROL_SERVER:
            flags = (*flags, "--dns", self._dns)
        await super()._launch_service(name, module, *flags, **more)

    async def restart_control_server(self, after_s: float) -> None:
        """Kill the control server; start it again."""
        await self.kill_control_server()
        await asyncio.sleep(after_s)
        await self.start_control_server()

    async def ask(self, method: str, request: Any) -> Any:
        """Ask the control server; ``None`` while it is away."""
        async with grpc.aio.insecure_channel(self.admin_address) as channel:
            stub = admin_pb2_grpc.AdminStub(channel)
            with contextlib.suppress(grpc.aio.AioRpcError):
                return await getattr(stub, method)(request, timeout=10)
        return None

    async def envoy_hosts(self) -> set[str]:
        """Return the addresses that Envoy has."""
        page = f"http://{self.envoy_admin}/clusters?format=json"
        async with aiohttp.ClientSession() as http, http.get(page) as answer:
            known = await answer.json(content_type=None)
        return {
            f"{at['address']}:{at['port_value']}"
            for cluster in known["cluster_statuses"]
            if cluster["name"] == "llm/stable/http"
            for at in (each["address"]["socket_address"] for each in cluster["host_statuses"])
        }

    async def picker_endpoints(self) -> dict[str, Any]:
        """Return the picker's endpoints, by id."""
        page = f"http://{self.picker_metrics}/debug/state"
        async with aiohttp.ClientSession() as http, http.get(page) as answer:
            state = await answer.json(content_type=None)
        return dict(state["router"]["pools"]["llm"]["endpoints"])


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
