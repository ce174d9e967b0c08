"""A whole system of real processes under a schedule of faults, and the verdict on it.

Rules:

1. A fault begins when its parts and those of their groups are whole: so of each group at most one
   part is lost, while faults of other groups go on.
2. A fault ends when it is taken back and all its groups are whole again, which must be within
   ``WHOLE_S``; the clients never pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp
import orjson

from support.chaos.real import checker
from support.chaos.real.load import Load, Operator
from support.chaos.real.network import Network, small_disk, unmount
from support.chaos.real.parts import Part
from support.chaos.real.schedule import PARTS, group
from support.chaos.real.system import FIRST, KEY, System

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.chaos.real.schedule import Fault

OWN: Final = "198.18.0.1"
WHOLE_S: Final = 60.0
"""Ten times the aim."""
START_S: Final = 120.0
SLOW_S: Final = 0.15
DISK_MIB: Final = {"etcd": 256}
CLIENTS: Final = PARTS["envoy"] + PARTS["picker"]


class World:
    """The system; an async context manager.

    Args:
        folder: Keeps logs and what was seen.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.windows: list[checker.Window] = []
        self.seen: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        self.late: list[str] = []
        """Parts that were not whole in time."""
        self.sequences = 0
        """Sequences that replicas have read."""
        self._lacks = self._unequal = ""
        self._busy: set[str] = set()
        self._free = asyncio.Condition()
        self._first: dict[str, tuple[int, int]] = {}
        self.parts: dict[str, Part] = {}

    async def __aenter__(self) -> Self:
        """Start all of it, and wait until it is whole.

        Raises:
            UnsupportedError: This machine has no hosts of its own.
            TimeoutError: A part does not come up; the message says which.
        """
        async with contextlib.AsyncExitStack() as exit_:
            self._network = Network(OWN)
            self._run = Path(tempfile.mkdtemp(prefix="tidegate-chaos-"))
            exit_.callback(shutil.rmtree, self._run, ignore_errors=True)
            self.system = system = System(self._run)
            system.prepare()
            for name in system.at:
                self._place(name)
                exit_.callback(unmount, self._run / name)
            self._network.run()
            exit_.callback(self._network.close)
            tls = aiohttp.TCPConnector(ssl=system.presented("viewer").context(), force_close=True)
            self._http = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=2), connector=tls
            )
            exit_.push_async_callback(self._http.close)
            servers = [f"{system.at[each]}:18010" for each in system.named("control")]
            self.operator = Operator(servers, system.presented("admin"))
            exit_.push_async_callback(self.operator.close)
            exit_.push_async_callback(self._end)
            for part in self.parts.values():
                part.start()
            await self._until(lambda: self.whole(set(PARTS)), START_S)
            await self._until(self.equal, START_S)
            await self._until(self._picks, START_S)
            envoys = {each: f"{system.at[each]}:10000" for each in system.named("envoy")}
            self.load = await exit_.enter_async_context(Load(envoys))
            looks = [self.operator.run(FIRST + 1), *map(self._look, envoys)]
            tasks = list(map(asyncio.create_task, looks))
            exit_.callback(lambda: [task.cancel() for task in tasks])
            self._exit = exit_.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all of it; the logs stay in the folder."""
        await self._exit.aclose()

    def _place(self, name: str) -> None:
        address = self.system.at[name]
        inside, folder = self._network.host(address), self._run / name
        small_disk(folder, DISK_MIB.get(group(name), 64))
        command, env = self.system.command(name, address, folder)
        self.parts[name] = Part(name, address, inside, command, env, folder)

    async def _end(self) -> None:
        for part in self.parts.values():
            await part.end()
            part.keep_log(self.folder)

    # --- faults -----------------------------------------------------------------------------------

    async def play(self, faults: Sequence[Fault], until: float) -> None:
        """Let faults happen, no new one after ``until``; return when all is whole and equal."""
        await asyncio.sleep(3.0)
        self._first = self._used()
        going: list[asyncio.Task[None]] = []
        for fault in faults:
            if not all(part in self.parts for part in fault.parts):
                continue
            await asyncio.sleep(fault.after_s)
            async with self._free:
                await self._free.wait_for(lambda fault=fault: not fault.groups & self._busy)
                self._busy |= fault.groups
            if time.monotonic() > until or self.late:
                break
            going.append(asyncio.create_task(self._let(fault)))
        await asyncio.gather(*going)
        if not await self._until(self.equal, WHOLE_S, must=False):
            self.late.append(f"not equal: {self._unequal}")
        await asyncio.sleep(checker.AFTER_S)

    async def _let(self, fault: Fault) -> None:
        began = time.monotonic()
        sys.stdout.write(f"{fault}\n")
        sys.stdout.flush()
        self._apply(fault)
        await asyncio.sleep(fault.lasts_s)
        self._take_back(fault)
        if not await self._until(lambda: self.whole(fault.groups), WHOLE_S, must=False):
            self.late.append(f"{fault}: not whole: {self._lacks}")
        self.windows.append(
            checker.Window(fault.number, fault.kind, fault.parts, began, time.monotonic())
        )
        async with self._free:
            self._busy -= fault.groups
            self._free.notify_all()

    def _apply(self, fault: Fault) -> None:
        if len(fault.parts) == 1:
            getattr(self.parts[fault.parts[0]], fault.kind)()
            return
        for one, two in self._ways(fault):
            if fault.kind == "slow":
                self._network.slow(one, two, SLOW_S)
            else:
                self._network.cut(one, two)

    def _take_back(self, fault: Fault) -> None:
        if len(fault.parts) == 1:
            self.parts[fault.parts[0]].heal()
            return
        for one, two in self._ways(fault):
            if fault.kind == "slow":
                self._network.slow(one, two, 0.0)
            else:
                self._network.cut(one, two, whole=True)

    def _ways(self, fault: Fault) -> list[tuple[str, str]]:
        one, two = (self.system.at[each] for each in fault.parts)
        ways = {"cut there": [(one, two)], "cut back": [(two, one)]}
        return ways.get(fault.kind, [(one, two), (two, one)])

    # --- what is whole ----------------------------------------------------------------------------

    async def whole(self, groups: set[str] | frozenset[str]) -> bool:
        """Return whether all parts of groups do their work."""
        for name in self.system.at:
            if group(name) in groups and not await self._whole(name):
                self._lacks = name
                return False
        if "control" in groups and await self.operator.status() is None:
            self._lacks = "a leader"
            return False
        return True

    async def _whole(self, name: str) -> bool:
        part, kind = self.parts[name], group(name)
        if not part.pid:
            return False
        if kind == "control":
            return True
        pages = {
            "envoy": "http://{}:19001/ready",
            "picker": "https://{}:18081/debug/state",
            "etcd": "http://{}:2379/health",
        }
        page = await self._page(
            pages.get(kind, "http://{}:8000/v2/health/ready").format(part.address)
        )
        if page is None:
            return False
        if kind == "picker":
            found = orjson.loads(page)["workers"]["group"]
            return len(found) == PARTS["picker"] - 1 and all(
                each["caught_up"] and each["agrees"] for each in found
            )
        if kind in ("llm", "counter"):
            known = [await self._healthy(envoy) for envoy in self.system.named("envoy")]
            return all(part.address in each for each in known)
        return kind != "etcd" or b'"true"' in page

    async def _healthy(self, envoy: str) -> set[str]:
        """Return the addresses of replicas of which an Envoy finds all ports healthy."""
        page = await self._page(f"http://{self.system.at[envoy]}:19001/clusters?format=json")
        found: dict[str, bool] = {}
        for cluster in orjson.loads(page or b"{}").get("cluster_statuses", ()):
            if cluster["name"].startswith(("llm/", "counter/")):
                for host in cluster.get("host_statuses", ()):
                    at = host["address"]["socket_address"]["address"]
                    sick = set(host.get("health_status", {})) - {"eds_health_status"}
                    found[at] = found.get(at, True) and not sick
        return {at for at, fine in found.items() if fine}

    async def equal(self) -> bool:
        """Return whether all Envoys and pickers have the newest state, and all is whole."""
        self._unequal = "a part"
        if not await self.whole(set(PARTS)):
            self._unequal = self._lacks
            return False
        status = await self.operator.status()
        if status is None:
            return False
        states = {each.node: {view.state for view in each.types} for each in status.clients}
        self._unequal = f"{states} {status.store_error}"
        return len(states) == CLIENTS and all(each == {"SYNCED"} for each in states.values())

    async def _picks(self) -> bool:
        """Return whether requests that need a picker are answered through all Envoys."""
        for envoy in 2 * PARTS["picker"] * self.system.named("envoy"):
            url = f"http://{self.system.at[envoy]}:10000/v2/models/counter/infer"
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with self._http.post(url, json={"id": "first", "inputs": []}) as answer:
                    if answer.status == 200:
                        continue
            self._lacks = f"a picker of {envoy}"
            return False
        return True

    async def _until(self, look: Any, within_s: float, *, must: bool = True) -> bool:
        end = time.monotonic() + within_s
        while not await look():
            if time.monotonic() > end:
                if must:
                    raise TimeoutError(f"no start: {self._lacks}; logs in {self.folder}")
                return False
            await asyncio.sleep(0.25)
        return True

    async def _page(self, url: str) -> bytes | None:
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with self._http.get(url) as answer:
                return await answer.read() if answer.status == 200 else None
        return None

    async def _look(self, envoy: str) -> None:
        """Keep which state an Envoy has."""
        while True:
            page = await self._page(f"http://{self.system.at[envoy]}:19001/runtime")
            entry = orjson.loads(page or b"{}").get("entries", {}).get(KEY)
            if entry is not None:
                self.seen[envoy].append((time.monotonic(), int(entry["final_value"])))
            await asyncio.sleep(0.5)

    # --- the verdict ------------------------------------------------------------------------------

    async def verdict(self) -> list[str]:
        """Return what was broken."""
        requests, windows = list(self.load.done), self.windows
        received = self.received()
        self.sequences = len({each.sequence for each in received if each.sequence})
        try:
            history = await self.operator.history()
        except Exception as error:  # noqa: BLE001 - told as a fault
            return [*self.late, f"no history: {error!r}"]
        return [
            *self.late,
            *checker.of_requests(requests, windows),
            *checker.of_sequences(received),
            *checker.of_changes(self.operator.changes, history, self.seen),
            *checker.of_exits([one for each in self.parts.values() for one in each.exits], windows),
            *checker.of_recovery(self.costs()),
            *checker.of_growth(self._first, self._used()),
        ]

    def costs(self) -> list[checker.Cost]:
        """Return what each fault cost."""
        return checker.costs(self.windows, self.load.done, self.operator.changes)

    def received(self) -> list[checker.Received]:
        """Return what the replicas have read."""
        lines = self.system.receipts.read_text().splitlines()
        return [checker.Received(*line.split(" ", 2)) for line in lines]

    def _used(self) -> dict[str, tuple[int, int]]:
        """Return what each process uses, by name and process."""
        found = {f"{each.name} {each.pid}": each.used() for each in self.parts.values()}
        return {name: used for name, used in found.items() if used is not None}
