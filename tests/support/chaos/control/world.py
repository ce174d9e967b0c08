"""Control servers over a store that fails, and what must be true of them.

The servers are the product's: leading, history, changes, rollouts, operations on models and ADS.
Ports, etcd, Tritons, threads and time are simulated (``hosts``, ``strands``). A script is what one
operator wants, who repeats what has had no effect. A *point* is a call of the store that leaves or
takes effect, a thread, or a message between the leader and a client: at one of them something
happens to the leader. What must be true:

* The head is changed by the newest leader alone: its epoch never falls, its changes go on. A server
  leads after the one before has ended.
* What an operator was told to be made is made, under the number that was told, and stays.
* A client that has taken something of an epoch takes nothing of an earlier one.
* In the end one server leads; all clients have what it publishes, once, without a refusal; a new
  follower reads what it has; the change has come to its end, or back, as its rules say.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import tempfile
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import grpc
import structlog

from support.ads_peers import _NAMED
from support.chaos import strands
from support.chaos.control.clients import Client, Stream
from support.chaos.control.parts import Log, Operators, Port, Quiet, Tritons
from support.chaos.control.scripts import SCRIPTS, _text
from support.chaos.control.store import Channel, Direct, Store
from support.chaos.control.values import (
    AGAIN_S,
    BEGINS_S,
    ENDS_S,
    LONG_S,
    MEMBERS,
    MOST_POINTS,
    SERVERS,
    SKEW_S,
    WAY_S,
    BrokenError,
    Point,
)
from support.chaos.hosts import HostLoop, Network
from support.chaos.strands import Killed, Strand, ThreadedLoop
from tidegate_api.names import ENDPOINT_TYPE
from xds_server import app
from xds_server.fleet import store
from xds_server.fleet.stored.shared import SharedHistory
from xds_server.leading import etcd, keeper, standing
from xds_server.server import service
from xds_server.server.service import AdsServer
from xds_server.settings import ControlSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


class Host(ThreadedLoop):
    """A process of a control server."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world.network, f"server-{number}", world.rng)
        self.world, self.number = world, number
        self.epoch = 0
        """Of its history, once it leads."""
        self.port: Callable[[Stream], None] | None = None
        self.streams: set[Stream] = set()
        self.parts: Any = None
        """The service for operators, once it is bound; it answers once there is a fleet."""
        self.ready = False
        self.stop = asyncio.Event()
        """Ends it as a signal does."""

    def run_in_executor(self, _: Any, call: Any, *args: Any) -> asyncio.Future[Any]:
        """Run a function in a thread; a point."""
        self.world.point(self, "thread")
        return super().run_in_executor(None, call, *args)

    def end(self, *, power: bool = True) -> None:
        """End the process; its connections break."""
        if self.alive:
            for each in tuple(self.streams):
                each.broken()
            self.world.ended(self)
        super().end(power=power)


class World:
    """One run of a script; see the module's rules."""

    def __init__(self, at: Point | None, seed: int, file: Path) -> None:
        self.rng = Random(seed)
        self.network = Network(self.rng, WAY_S)
        self.at = at
        self.points = 0
        self.second = 0
        """Points of others after which one of them is killed too; 0 = none."""
        self.armed: Host | None = None
        """Whose points are counted."""
        self.store = Store(self)
        self.cut: set[tuple[str, str]] = set()
        self.slow: dict[str, float] = {}
        self.hosts: dict[int, Host] = {}
        self.epoch = 0
        """Of the newest leader."""
        self.loaded: set[str] = set()
        """Replicas that have the model."""
        self.errors: list[str] = []
        self.told: dict[int, tuple[str, ...]] = {}
        """What operators were told to be made, by revision."""
        self.drained = False
        """A picker knows that r1 drains, and the operator was told so."""
        self.promised = False
        self.accepts_loss = False
        """Servers are started with ``--accept-loss``."""
        self.done = False
        self._file = file
        self.people = HostLoop(self.network, "people")
        self.clients = [
            Client(self, node) for node in ("envoy-1", "envoy-2", "picker-1", "picker-2")
        ]
        self.clients.append(Client(self, "envoy-mute", "mute"))

    def parse(self, data: bytes) -> Any:
        """Return a request as the server reads it."""
        return service.wire.parse_delta(data)

    # --- servers

    def start(self, number: int) -> None:
        """Start a control server."""
        host = self.hosts[number] = Host(self, number)
        settings = ControlSettings(
            fleet=self._file,
            store=f"etcd://{','.join(MEMBERS)}",
            admin=f"127.0.0.{number + 1}:18010",
            state=self._file.parent / f"server-{number}",
            accept_loss=self.accepts_loss,
        )

        async def live() -> None:
            stop = host.stop = asyncio.Event()
            try:
                async with app._running(settings, stop):
                    await stop.wait()
            except (app.StoreError, app.FleetError, OSError) as error:
                self.errors.append(f"server {number} ended: {error}")
            self.network.at(self.network.now, host.end)

        host.do(host.create_task, live())

    def ended(self, host: Host) -> None:
        """Start a process again that has ended."""
        if self.hosts.get(host.number) is host:
            self.network.at(self.network.now + AGAIN_S, self.start, host.number)

    def lost(self) -> None:
        """End the process of the strand that runs."""
        strands.running().host.end()
        raise Killed

    @property
    def leader(self) -> Host | None:
        """The server that answers operators; ``None`` = none does."""
        found = [each for each in self.hosts.values() if each.alive and each.ready]
        return max(found, key=lambda each: each.epoch, default=None)

    # --- faults

    def _kill(self, host: Host) -> None:
        if Strand.now is None:
            self.network.at(self.network.now, host.end)
        else:
            host.end()
            raise Killed

    def point(self, host: Any, _: str) -> None:
        """Let something happen, if it is to here."""
        if self.done or self.armed is None:
            return
        if host is not self.armed:
            self.second -= 1
            if self.second == 0:
                self._kill(host)
            return
        self.points += 1
        if self.at is not None and self.points == self.at.number:
            self._happens(self.at.fault, host)

    def _happens(self, fault: str, host: Host) -> None:
        network = self.network
        if fault == "kill-twice":
            self.second = self.rng.randrange(1, MOST_POINTS)
        if fault.startswith("kill"):
            self._kill(host)
        elif fault == "end":
            network.at(network.now, host.do, host.stop.set)
        elif fault == "stop":
            host.stopped_until = network.now + LONG_S
        elif fault == "full":
            self.store.full = True
            network.at(network.now + LONG_S, setattr, self.store, "full", False)
        elif fault == "slow":
            self.slow = dict.fromkeys(MEMBERS[:1], 1.5)
            network.at(network.now + LONG_S, self.slow.clear)
        else:
            self._cut(fault, host)

    def _cut(self, fault: str, host: Host) -> None:
        ways = {(host.address, each) for each in MEMBERS}
        self.cut |= {(two, one) for one, two in ways}
        if fault != "lose-reply":
            self.cut |= ways
        lasts_s = {"cut": LONG_S, "cut-shortly": 2.0, "lose-reply": 0.2}[fault]
        self.network.at(self.network.now + lasts_s, self.cut.clear)

    def power_lost(self, backup: Any) -> None:
        """End all servers; the store comes back as it was."""
        for each in tuple(self.hosts.values()):
            each.end()
        self.store.restore(backup)

    # --- what is seen

    def seen(self, client: Client) -> None:
        """Look at what a client has taken."""
        if self.drained and client.kind == "picker" and not client.draining("r1"):
            self.errors.append(f"{client.node} no longer knows that r1 drains")
        self.drained |= self.promised and client.draining("r1")

    async def asked(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        """Ask the server that leads, until one has answered; what it refuses is raised.

        What may have been made by a server that has ended is not known: ``None``.
        """
        while (host := self.leader) is None or host.stopped_until > self.network.now:  # noqa: ASYNC110 - as operators do
            await asyncio.sleep(0.2)
        answer = self.people.create_future()

        async def call() -> None:
            found: tuple[Any, Any]
            try:
                found = await ask(host.parts), None
            except Exception as error:  # noqa: BLE001 - told to the operator
                found = None, error
            self.people.call_later(
                WAY_S, lambda: None if answer.done() else answer.set_result(found)
            )

        host.do(host.create_task, call())
        while not answer.done():
            if not host.alive or host.stopped_until > self.network.now + WAY_S:
                return None
            await asyncio.sleep(0.05)
        value, error = answer.result()
        if error is not None:
            raise error
        return value

    # --- a run

    def play(self, script: Callable[[World], Awaitable[None]]) -> None:
        """Run a script to its end.

        Raises:
            BrokenError: What must be true is not.
        """
        for number in range(SERVERS):
            self.network.at(number * 0.05, self.start, number)
        self.network.run(BEGINS_S)
        self.armed = self.leader
        if self.armed is None:
            raise BrokenError(f"no server leads: {self.errors}")
        ended: list[float] = []

        async def life() -> None:
            await script(self)
            ended.append(self.network.now)

        self.people.do(self.people.create_task, life())
        while not ended and self.network.now < ENDS_S:
            self.network.run(self.network.now + 1.0)
        self.done = True
        if not ended:
            raise BrokenError(f"the script does not end; {self.errors}")
        self.network.run(self.network.now + 2 * LONG_S + 6.0)
        self.check()

    def check(self) -> None:
        """Check what must be true in the end.

        Raises:
            BrokenError: It is not.
        """
        if self.errors:
            raise BrokenError("; ".join(self.errors))
        leaders = [each for each in self.hosts.values() if each.alive and each.ready]
        if len(leaders) != 1:
            raise BrokenError(f"{len(leaders)} servers lead")
        (host,) = leaders
        for client in self.clients:
            if client.stream is None or client.stream.host is not host:
                raise BrokenError(f"{client.node} is not connected")
            if client.manner == "good":
                self._current(host, client)
        control = host.parts._control
        stored = control.journal._store
        if control.journal.fault:
            raise BrokenError(control.journal.fault)
        self._history(stored)
        self._followed(stored)

    def _history(self, stored: Any) -> None:
        known = {each.number: each for each in stored.revisions(1000)}
        if sorted(known) != list(range(1, len(known) + 1)):
            raise BrokenError(f"the history has {sorted(known)}")
        for number, changes in self.told.items():
            if number not in known or known[number].changes != changes:
                raise BrokenError(f"revision {number} was told as {changes}: {known.get(number)}")
        newest = known[max(known)]
        if not newest.outcome.startswith("acknowledged by"):
            raise BrokenError(f"the outcome of the newest revision is {newest.outcome!r}")

    def _current(self, host: Host, client: Client) -> None:
        force = host.parts._observed.in_force(client.kind)
        for url, held in client.held.items():
            wanted = {each.name: each.version for each in force.resources(url).values()}
            have = {name: sent.partition("-")[0] for name, (sent, _) in held.items()}  # its mark
            if url == ENDPOINT_TYPE:
                wanted = {name: wanted[name] for name in client.names[url] if name in wanted}
            elif url in _NAMED:
                wanted = {name: each for name, each in wanted.items() if name in _NAMED[url]}
            if have != wanted:
                raise BrokenError(f"{client.node} has {have} of {url}, not {wanted}")

    def _followed(self, stored: Any) -> None:
        """Check that a follower which begins now has what the leader has."""
        with patch.object(strands, "running", lambda: SimpleNamespace(host=self.people)):
            keys = Direct(self.store)
            history = SharedHistory(keys, "etcd", "w", lambda: False, lambda: None, lambda: None)
            history.follow()
        if sorted(history.db.iterdump()) != sorted(stored._open().iterdump()):
            raise BrokenError("a follower has something else than the leader")
        history.db.close()

    def close(self) -> None:
        """End all."""
        self.done = True
        hosts, self.hosts = self.hosts, {}
        for each in hosts.values():
            each.end()
        self.people.end()


def play(at: Point | None, script: str = "", seed: int = 0) -> World:
    """Run a script with something that happens at a point; ``None`` = nothing.

    Raises:
        BrokenError: What must be true is not.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.yaml"
        file.write_text(_text())
        state = random.getstate()
        with contextlib.ExitStack() as stack:
            stack.callback(random.setstate, state)
            world = World(at, seed, file)
            for owner, name, value in _replaced(world):
                stack.enter_context(patch.object(owner, name, value))
            stack.enter_context(_silent())
            stack.callback(world.close)
            world.play(SCRIPTS[script if at is None else at.script])
    return world


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        yield
    finally:
        structlog.configure(**before)


def _replaced(world: World) -> list[tuple[Any, str, Any]]:
    network = world.network
    now = lambda: network.now  # noqa: E731 - one of many

    def wall() -> float:
        host = asyncio._get_running_loop() if Strand.now is None else Strand.now.host
        return 1_800_000_000.0 + network.now + SKEW_S * getattr(host, "number", 0)

    @contextlib.asynccontextmanager
    async def no_pages(*_: Any) -> Any:
        yield "metrics"

    wait = contextlib.asynccontextmanager(_nothing)
    time = SimpleNamespace(
        monotonic=now, time=wall, time_ns=lambda: int(wall() * 1e9), sleep=strands.sleep
    )
    chance = SimpleNamespace(random=world.rng.random)
    token = SimpleNamespace(token_hex=lambda _: f"{world.rng.getrandbits(64):016x}")
    rpc = SimpleNamespace(
        insecure_channel=lambda each, **_: Channel(world, each),
        RpcError=grpc.RpcError,
        StatusCode=grpc.StatusCode,
    )
    return [
        (etcd, "grpc", rpc),
        (etcd, "time", time),
        (keeper, "threading", strands.THREADING),
        (store, "threading", strands.THREADING),
        (keeper, "clock", now),
        (keeper, "_log", Log()),
        (standing, "clock", now),
        (standing, "time", time),
        (standing, "secrets", token),
        (standing, "_end", world.lost),
        (standing, "_log", Log()),
        (standing, "RefusingPorts", wait),
        (service, "AdsPort", Port),
        (app, "AdsServer", functools.partial(AdsServer, clock=now)),
        (app, "time", time),
        (app, "random", chance),
        (app, "serve_pages", no_pages),
        (app, "OperatorPorts", Operators),
        (app, "TritonCalls", lambda: Tritons(world)),
        (app, "Readiness", Quiet),
        (app, "CanaryAlerts", Quiet),
        (app, "FileWatch", Quiet),
        (app, "StatusLog", Quiet),
        (app, "_collect_rarely", lambda: None),
    ]


async def _nothing(*_: Any) -> Any:
    yield None
