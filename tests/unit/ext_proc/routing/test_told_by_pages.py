"""A router without an access log learns speeds and waits from the pages of its replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.ticket import Outcome

if TYPE_CHECKING:
    from ext_proc.routing.router import Router
    from ext_proc.routing.values.ticket import Ticket

WORDS = 4_000
"""Bytes of a prompt, 1,000 tokens of the usual text."""
GAPS = {True: 1_050.0, False: 900.0}
"""Tokens that the engine can compute between two prompts, which have 1,000 in the mean: where its
queue is to tell the speed, there must be one."""


def pace(router: Router) -> tuple[object, float]:
    """Return what the speed is learned from, and the speed, tokens/s."""
    pools: dict[str, dict[str, dict[str, float]]] = router.state(0.0)["pools"]  # type: ignore[assignment]
    told = pools["llm"]["pace"]
    return told["from"], told["tokens_per_s"]


class Engine:
    """One replica of a router, which computes a prompt after the other and never ends an answer.

    Args:
        router: Its router.
        speed: Tokens per second.
        counts: Whether its page counts first tokens; else it tells its queue.
    """

    def __init__(self, router: Router, speed: float, *, counts: bool) -> None:
        self.router, self.speed, self.counts = router, speed, counts
        self.now = self.free_at = self.seconds = 0.0
        self.prompts: list[tuple[float, float]] = []
        self.tickets: list[Ticket] = []
        self.page()

    def page(self) -> None:
        """Read its page."""
        done = [(end, took) for end, took in self.prompts if end <= self.now]
        reading = Reading(
            self.now,
            "m",
            queued=float(max(0, len(self.prompts) - len(done) - 1)),
            running=float(min(len(self.prompts), len(done) + 1)),
            first_tokens=float(len(done)) if self.counts else None,
            first_tokens_s=sum(took for _, took in done) if self.counts else None,
        )
        self.router.registry.observe("r0", (reading,))

    def serve(self, build, prompts: int, gap_s: float) -> None:  # type: ignore[no-untyped-def]
        """Send prompts of 500 to 1,500 tokens; read the page before each third."""
        for number in range(prompts):
            size = WORDS // 2 + WORDS * (number % 7) // 6
            request = build.request(prompt=b"x" * size, streaming=True)
            decision = self.router.decide(request, self.now, self.now)
            assert isinstance(decision, Decision)
            assert decision.ticket is not None
            self.tickets.append(decision.ticket)
            self.free_at = max(self.free_at, self.now) + size / 4.0 / self.speed
            self.prompts.append((self.free_at, self.free_at - self.now))
            self.now += gap_s
            if number % 3 == 0:
                self.page()


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("speed", [700.0, 20_000.0])
def test_the_speed_is_that_of_the_engine(build, speed: float, *, counts: bool) -> None:
    """No answer ends, no log is written, and the default speed is ten times as high, or half."""
    router = build.router(build.pool(1))
    engine = Engine(router, speed, counts=counts)
    engine.serve(build, 300, gap_s=GAPS[counts] / speed)
    source, found = pace(router)
    assert source == ("engines" if counts else "queues")
    assert found == pytest.approx(speed, rel=0.5)
    (replica,) = router.registry.replicas()
    waits = max(0.0, engine.free_at - engine.now)
    drain = replica.drain_s(engine.now, 1.0 / found)
    assert drain == pytest.approx(waits, rel=0.5, abs=4_000.0 / speed)


def test_failed_and_removed_requests_are_not_waited_for(build) -> None:
    """Nothing of a removed replica is kept, and a prompt that failed is never the oldest."""
    router = build.router(build.pool(1))
    engine = Engine(router, 1_000.0, counts=True)
    engine.serve(build, 1, gap_s=0.0)
    (first,) = engine.tickets
    assert "r0" in router.learner.progress.told
    pending = router.learner.progress._pages["r0"].pending
    assert list(pending) == [first.id]
    router.settle(first, Outcome.ABORTED, engine.now)
    assert not pending
    engine.serve(build, 40, gap_s=1.0)
    assert pace(router)[0] == "default"
    router.set_pools({}, engine.now)
    assert "r0" not in router.learner.progress.told


def test_a_prompt_waits_as_long_as_the_first_in_the_queue(build) -> None:
    """Where the batch is full, the wait is not that of tokens; it falls until the next page."""
    router = build.router(build.pool(1))
    router.registry.observe("r0", (Reading(0.0, "m", queued=0.0, running=0.0),))
    for number in range(6):
        router.decide(build.request(prompt=b"x" * 40, streaming=True), float(number), 0.0)
    router.registry.observe("r0", (Reading(6.0, "m", queued=2.0, running=4.0),))
    (replica,) = router.registry.replicas()
    assert replica.drain_s(6.0, 1e-4) == pytest.approx(2.0)
    assert replica.drain_s(7.0, 1e-4) == pytest.approx(1.0)
    explained = router.explain(build.request(prompt=b"x" * 40), 7.0, 0.0)
    assert explained["candidates"][0]["parts"]["drain_s"] == pytest.approx(1.0, abs=0.1)
    router.registry.observe("r0", (Reading(7.5, "m", queued=0.0, running=6.0),))
    assert replica.drain_s(7.5, 1e-4) < 0.1
    router.registry.observe("r0", (Reading(8.0, "m", queued=400.0, running=4.0),))
    assert replica.drain_s(8.0, 1e-4) < 0.1, "the queue is that of other clients"
