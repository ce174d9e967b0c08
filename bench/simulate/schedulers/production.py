"""Adapter that runs the picker's unchanged router as a simulated scheduler."""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from bench.simulate.schedulers.base import SimulatedChoice
from ext_proc.requests.blocks import MAX_BLOCKS as MAX_PROMPT_BLOCKS
from ext_proc.routing.cache.prefix_index import MAX_BLOCKS
from ext_proc.routing.queue.waiting import QueuedRequest
from ext_proc.routing.router import Router
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.scale import ID_BYTES
from ext_proc.routing.values.settings import SlowStart
from ext_proc.routing.values.ticket import Outcome, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.simulate.schedulers.base import SimulatedSample, World
    from bench.simulate.workload import Job
    from ext_proc.routing.limits import Limit
    from ext_proc.routing.pipeline.scheduler import Decision

POOL: Final = "simulated"
LOG_DELAY_S: Final = 1.0
"""Delay of the access log, seconds: Envoy logs running requests once per second."""
_FALLBACKS: Final = 2
_BLOCK_ID_BYTES: Final = 8


class ProductionScheduler:
    """The picker's router with one policy.

    It has the picker's inputs: prompt bytes, block hashes, its own dispatches and settlements, and
    delayed telemetry, which tells the size of the cache (and the tokens of prompts, where the
    scenario has a scale of text). First tokens arrive ``LOG_DELAY_S`` late,
    as in the access log. Cache contents are unknown.

    Args:
        policy: Policy of the pool.
        world: The simulation.
    """

    poll_s: float | None = None

    def __init__(self, policy: str, world: World) -> None:
        self._world = world
        self._policy = policy
        self._router = Router(world.rng)
        self._tickets: dict[int, Ticket] = {}
        self._now = 0.0
        self._log: deque[tuple[float, int, EndpointKey, float]] = deque()
        """Pending log entries: (due time, ticket id, endpoint, time to first byte in seconds)."""
        scenario = world.scenario
        count = scenario.models
        self._models = ["llm"] if count == 1 else [f"llm-{number}" for number in range(count)]
        usual = scenario.bytes_per_token is None
        self._block_bytes = world.block_tokens * ID_BYTES if usual else Pool("").block_chars
        self._present = [index != scenario.joiner for index in range(scenario.replicas)]
        self._joined: dict[int, float] = {}
        self._by_address = {_address(index): index for index in range(scenario.replicas)}
        self._router.set_pools({POOL: self._pool()}, 0.0)

    def _pool(self) -> Pool:
        scenario = self._world.scenario
        return Pool(
            name=POOL,
            models=frozenset(self._models),
            variants=(Variant("stable", 1),),
            endpoints=tuple(
                Endpoint(
                    key=EndpointKey(f"r{index}", 1),
                    variant="stable",
                    http=_address(index),
                    grpc=None,
                    capacity=scenario.speed(index) if scenario.capacities_known else 1.0,
                    joined_unix_s=self._joined.get(index),
                )
                for index, present in enumerate(self._present)
                if present
            ),
            policy=self._policy,
            fallbacks=_FALLBACKS,
            block_chars=self._block_bytes,
            index_blocks=scenario.index_blocks or MAX_BLOCKS,
            slow_start=SlowStart(window_s=scenario.slow_start_s),
            limit=scenario.limit,
            hold_s=scenario.hold_s,
            per_endpoint_in_flight=scenario.per_endpoint_in_flight,
        )

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:
        """Let the router decide on the request of a client."""
        self._read_log(now)
        return self._decide(job, self._request(job), now)

    def explained(self, job: Job, now: float) -> dict[str, Any]:
        """Return how the router would decide now, as on its debug page; changes no load."""
        self._read_log(now)
        return self._router.explain(self._request(job), now, now)

    def follow(self, job: Job, replica: int, now: float) -> SimulatedChoice | None:
        """Send a job to a replica that was chosen elsewhere, as if the router had chosen it."""
        self._read_log(now)
        return self._decide(job, self._request(job, frozenset({_address(replica)})), now)

    def _request(self, job: Job, subset: frozenset[str] | None = None) -> Request:
        features = Features(
            form=Form.GENERATE_STREAM,
            model=job.model,
            session=job.session,
            streaming=True,
            max_tokens=job.output_tokens,
            prompt=_prompt(job, self._world.block_tokens),
        )
        scale = self._world.scenario.bytes_per_token
        if scale is None:
            return Request(POOL, None, "http", features, job.blocks, subset=subset)
        features.prompt = bytes(max(1, int(job.input_tokens * scale)))
        believed = self._router.scales.of(POOL, job.model)
        return Request(
            POOL,
            None,
            "http",
            features,
            _cut(job, self._world.block_tokens * scale, self._block_bytes, len(features.prompt)),
            block_tokens=self._block_bytes / believed,
            subset=subset,
            bytes_per_token=believed,
        )

    @property
    def waiting(self) -> int:
        """Return the number of jobs in the picker's queue."""
        return self._router.queue.count

    def submit(
        self, job: Job, now: float, told: Callable[[SimulatedChoice | None, float], None]
    ) -> None:
        """Decide on the request of a client, or let it wait in the picker, as the exchange does."""
        scenario = self._world.scenario
        if not scenario.hold_s:
            told(self.choose(job, now), now)
            return
        self._read_log(now)
        self._now = now
        request = self._request(job)
        found: Decision | Refusal | None = None
        if not self._router.queue.count:
            found = self._router.decide(request, now, now)
        if found is None or (isinstance(found, Refusal) and found.kind is RefusalKind.SATURATED):
            deadline = None if scenario.deadline_s is None else now + scenario.deadline_s
            waiting = QueuedRequest(
                request,
                len(request.features.prompt or b""),
                now,
                deadline,
                scenario.hold_s,
                lambda decision: told(self._chosen(job, decision), self._now),
            )
            found = self._router.wait(waiting, now, now)
        if found is not None:
            told(self._chosen(job, found), now)

    def pump(self, now: float) -> None:
        """Let go what can go."""
        self._now = now
        self._router.pump(now, now)

    def _decide(self, job: Job, request: Request, now: float) -> SimulatedChoice | None:
        return self._chosen(job, self._router.decide(request, now, now))

    def _chosen(self, job: Job, decision: Decision | Refusal) -> SimulatedChoice | None:
        if isinstance(decision, Refusal):
            return None
        if decision.ticket is not None:
            self._tickets[job.index] = decision.ticket
        replicas = [self._by_address[address] for address in decision.addresses]
        return SimulatedChoice(replicas, decision.matched_blocks)

    def moved(self, job: Job, replica: int, now: float) -> None:
        """Report the serving replica to the router, as Envoy's response does."""
        ticket = self._tickets.get(job.index)
        if ticket is not None:
            self._tickets[job.index] = self._router.served(ticket, _address(replica), now)

    def answering(self, job: Job, now: float) -> None:
        """Append an access log entry, which the router receives ``LOG_DELAY_S`` later."""
        ticket = self._tickets.get(job.index)
        if ticket is not None and self._world.scenario.first_tokens:
            entry = (now + LOG_DELAY_S, ticket.id, ticket.endpoint, now - ticket.at)
            self._log.append(entry)

    def _read_log(self, now: float) -> None:
        log = self._log
        while log and log[0][0] <= now:
            _, ticket_id, endpoint, seconds = log.popleft()
            self._router.confirmed(ticket_id, endpoint)
            self._router.began(ticket_id, endpoint, seconds)

    def settled(self, job: Job, now: float) -> None:
        """Settle the ticket."""
        ticket = self._tickets.pop(job.index, None)
        if ticket is not None:
            self._router.settle(ticket, Outcome.DONE, now)

    def observe(self, replica: int, sample: SimulatedSample, now: float) -> None:  # noqa: ARG002 - interface
        """Report a reading with the values of Triton's metrics."""
        engine, tells = self._world.scenario.engine, self._world.scenario.tells
        counts = self._world.scenario.counts and self._world.scenario.bytes_per_token is not None
        reading = Reading(
            at=sample.at,
            queued=None if tells == "nothing" else float(sample.queued),
            running=None if tells == "nothing" else float(sample.running),
            slots=float(engine.max_running) if tells == "declared" else None,
            kv_used=sample.kv_used,
            kv_blocks=engine.cache_blocks,
            kv_block_tokens=engine.block_tokens,
            prompt_tokens=float(sample.prompt_tokens) if counts else None,
            prompts=float(sample.prompts) if counts else None,
            first_tokens=float(sample.prompts) if counts else None,
            first_tokens_s=sample.first_tokens_s if counts else None,
        )
        self._router.registry.observe(f"r{replica}", (reading,))

    def limits(self) -> list[Limit | None]:
        """Return the limits of the replicas' requests in flight."""
        pool, limits = self._router.pools[POOL], self._router.limits
        return [limits.limit(pool, each.key, self._models[0]) for each in pool.endpoints]

    def tokens_per_s(self) -> float:
        """Return the prefill speed that the picker has learned."""
        return 1.0 / self._router.learner.models[POOL].seconds_per_token

    def membership(self, replica: int, change: str, now: float) -> None:
        """Report that a replica joined, went silent or restarted."""
        if change == "joined":
            self._present[replica] = True
            self._joined[replica] = now
            self._router.set_pools({POOL: self._pool()}, now)
        elif change == "silent":
            self._router.registry.silent(f"r{replica}")
        else:
            self._router.registry.restarted(f"r{replica}", now)


def _address(index: int) -> str:
    return f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}:8000"


def _prompt(job: Job, block_tokens: int) -> bytes:
    """Return a prompt of the job's length in which equal blocks have equal bytes."""
    repeat = block_tokens * ID_BYTES // _BLOCK_ID_BYTES
    full = b"".join(
        [block.to_bytes(_BLOCK_ID_BYTES, "little", signed=True) * repeat for block in job.blocks]
    )
    tail = job.input_tokens * ID_BYTES - len(full)
    return full + job.index.to_bytes(_BLOCK_ID_BYTES, "little") * (tail // _BLOCK_ID_BYTES + 1)


def _cut(job: Job, old_bytes: float, new_bytes: int, size: int) -> tuple[int, ...]:
    """Return the blocks of a prompt that is cut into other blocks than the trace's, as hashes.

    A block is equal to another one if the trace's blocks up to its end are.
    """
    cut = []
    for number in range(min(size // new_bytes, MAX_PROMPT_BLOCKS)):
        last = ceil((number + 1) * new_bytes / old_bytes) - 1
        known = last < len(job.blocks)
        name = (job.blocks[last], number) if known else (job.index, number, -1)
        cut.append(hash(name))
    return tuple(cut)
