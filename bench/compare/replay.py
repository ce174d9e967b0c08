"""Replay of one list of arrivals on emulated replicas, through a real Envoy and picker or a peer.

Replicas have the simulator's engine and run at life speed, so that times are those of the
simulator plus what the stack adds. A replay ends when every request has its first token.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

from bench.emulator.fleet import EmulatedFleet
from bench.emulator.text import prompt_text
from bench.peers import contenders
from bench.peers.environment import FOLDER, Environment
from bench.peers.envoys import SESSION
from bench.suites import workloads
from bench.suites.fleet import ROUTING
from tidegate_api.names import SERVED_BY_HEADER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.engine import EngineConfig
    from bench.simulate.workload import Job

TIMEOUT = aiohttp.ClientTimeout(total=120.0)
LEAD_S = 1.0
"""Time from the start of the stack to the first request, seconds."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Requests and the fleet that serves them."""

    jobs: Sequence[Job]
    times: Sequence[float]
    """When each job is sent, seconds from the start, ascending."""
    salt: str
    """Salt of the prompts' text."""
    replicas: int
    cache_blocks: int
    """Size of each cache, blocks."""
    early_headers: bool = True
    """Whether streams begin with their headers at once, not with the first token."""
    cache_planned: bool = True
    """Whether prompts share blocks that a step is planned to fill."""
    restart_at_s: float | None = None
    """When the last ``restarted`` replicas restart; ``None``: never."""
    restarted: int = 0
    contender: str = contenders.TIDEGATE
    engine: EngineConfig | None = None
    """Parameters of the engines; ``None``: the usual ones."""


@dataclass(frozen=True, slots=True)
class Served:
    """One request of a replay."""

    replica: int | None
    """Index of the replica; ``None`` if it is unknown: lost, or served by a peer."""
    late_s: float
    """How late the client itself was, seconds."""
    ttft_s: float | None
    """First byte of the answer's body since the planned time, seconds; ``None`` if lost."""


async def replay(plan: ReplayPlan) -> list[Served]:
    """Replay the jobs; return one row per job, in their order.

    Raises:
        CrashError: A process of the stack ended.
    """
    bodies = [workloads.chat(prompt_text(job, plan.salt)) for job in plan.jobs]
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        EmulatedFleet(
            plan.replicas,
            scale=1.0,
            cache_blocks=plan.cache_blocks,
            early_headers=plan.early_headers,
            cache_planned=plan.cache_planned,
            engine=plan.engine,
        ) as fleet,
        contenders.start(
            plan.contender,
            fleet.places,
            Environment(FOLDER / "bin" / "python"),
            ROUTING,
            debug_headers=True,
        ) as running,
        aiohttp.ClientSession(connector=connector, timeout=TIMEOUT) as session,
    ):
        places = {place.http: index for index, place in enumerate(fleet.places)}
        client = _Client(session, f"http://{running.address}{contenders.CHAT}", places)
        sent = zip(plan.jobs, bodies, plan.times, strict=True)
        tasks = [asyncio.create_task(client.send(*each)) for each in sent]
        if plan.restart_at_s is not None:
            names = [place.name for place in fleet.places[plan.replicas - plan.restarted :]]
            await client.until(plan.restart_at_s)
            await fleet.renew(names)
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            await client.close()


class _Client:
    """Sends requests at their times and reads the rest of their answers in the background."""

    def __init__(self, session: aiohttp.ClientSession, url: str, places: dict[str, int]) -> None:
        self._session = session
        self._url = url
        self._places = places
        self._start = time.perf_counter() + LEAD_S
        self._reading: set[asyncio.Task[None]] = set()

    async def until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, self._start + at - time.perf_counter()))

    async def send(self, job: Job, body: bytes, at: float) -> Served:
        await self.until(at)
        late = time.perf_counter() - self._start - at
        headers = {"content-type": "application/json"}
        if job.session:
            headers[SESSION] = job.session
        try:
            answer = await self._session.post(self._url, data=body, headers=headers)
            if not answer.ok:
                return Served(None, late, None)
            first = await answer.content.readany()
        except (aiohttp.ClientError, TimeoutError):
            return Served(None, late, None)
        ttft = time.perf_counter() - self._start - at
        rest = asyncio.create_task(self._rest(answer))
        self._reading.add(rest)
        rest.add_done_callback(self._reading.discard)
        replica = self._places.get(answer.headers.get(SERVED_BY_HEADER, ""))
        return Served(replica, late, ttft) if first else Served(None, late, None)

    async def close(self) -> None:
        """Leave the answers that are not complete."""
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)

    async def _rest(self, answer: aiohttp.ClientResponse) -> None:
        try:
            await answer.read()
        except (aiohttp.ClientError, TimeoutError):
            return  # a restarted replica; the first token was counted
        finally:
            answer.close()
