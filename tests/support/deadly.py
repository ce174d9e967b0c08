"""A model of clients, a proxy and replicas around a real router, for tests of deaths.

Some bodies kill every replica that reads them; all others are answered if their replica lives long
enough. The proxy walks the decision's addresses: past those that refuse connections, and once more
after a replica that died with the request, if the router allows it. Its log arrives late.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from ext_proc.routing.router import Router
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.ticket import DONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.blame.deaths import Condemned
    from ext_proc.routing.pipeline.scheduler import Decision

STEP_S = 0.1
LOG_S = 0.4
"""Longest time until a log entry arrives."""
AGAIN_S = 1.0
"""Shortest time after which a client sends a failed body again."""
RESTART_S = 3.0
SEEN_S = 0.5
"""Time until the picker notices that a replica is gone."""
KILLER = b"killer"


def innocent(number: int) -> bytes:
    """Return a body that no other one is alike."""
    return b"innocent %d %s" % (number, sha256(b"%d" % number).hexdigest().encode())


def is_repeatable(decision: Decision) -> bool:
    """Return whether a second replica may read the request."""
    return decision.retriable and decision.repeatable


@dataclass
class Attempt:
    """A request at a replica."""

    body: bytes
    decision: Decision
    replica: str
    ends: float
    reads_left: int
    client: str | None = None
    ticket: int = field(init=False)

    def __post_init__(self) -> None:
        assert self.decision.ticket is not None
        self.ticket = self.decision.ticket.id


class DeadlyFleet:
    """The model.

    Args:
        replicas: Number of replicas.
        seed: Seed of all delays.
        killer_read: Whether the picker reads the killing body to its end.
        retry_read: How many further replicas may read a request.
        log_s: Longest time until a log entry arrives.
        repeats_unread: Whether the proxy sends a request again that the picker did not read.
    """

    def __init__(
        self,
        replicas: int,
        seed: int,
        *,
        killer_read: bool = True,
        retry_read: int = 1,
        log_s: float = LOG_S,
        repeats_unread: bool = True,
    ) -> None:
        self.now = 100.0
        self.router = Router(random.Random(seed))
        self.router.set_pools({"llm": _pool(replicas)}, self.now)
        self.deadly = {KILLER}
        """Bodies that kill."""
        self.down: dict[str, float] = {}
        """When each dead replica is back."""
        self.running: list[Attempt] = []
        self.deaths: list[float] = []
        self.died: list[tuple[float, str]] = []
        """When each replica died that a request killed."""
        self.broken: Counter[bytes] = Counter()
        """How many replicas died while they had a body."""
        self.answered: set[bytes] = set()
        self.failed: dict[bytes, float] = {}
        """Bodies whose last copy failed, and when."""
        self.refused: list[tuple[bytes, RefusalKind]] = []
        self.held_up: list[tuple[bytes, str | None]] = []
        """Bodies and clients that had to wait or were refused."""
        self.condemned: list[Condemned] = []
        self._random = random.Random(seed)
        self._killer_read = killer_read
        self._retry_read = retry_read
        self._log_s = log_s
        self._repeats_unread = repeats_unread
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._swept = self.now

    def send(self, body: bytes, client: str | None = None, *, model: str = "m") -> None:
        """Send a request through the picker and the proxy."""
        known = None if body in self.deadly and not self._killer_read else body
        features = Features(Form.GENERATE, model=model)
        request = Request("llm", None, "http", features, body=known, client=client)
        request.repeatable = known is not None or self._repeats_unread
        decision = self.router.decide(request, self.now, self.now)
        if isinstance(decision, Refusal):
            self.refused.append((body, decision.kind))
            self.held_up.append((body, client))
            self.failed[body] = self.now
            return
        self.failed.pop(body, None)
        reads = self._retry_read if is_repeatable(decision) else 0
        self._forward(body, decision, 0, reads, client)

    def _forward(
        self, body: bytes, decision: Decision, start: int, reads_left: int, client: str | None
    ) -> None:
        for number in range(start, len(decision.addresses)):
            replica = decision.addresses[number].partition(":")[0]
            if replica in self.down:
                self._at(self._delay(), lambda it=replica: self._gone(it))
                continue
            lasts = self._random.uniform(0.1, 0.5 if body in self.deadly else 1.5)
            made = Attempt(body, decision, replica, self.now + lasts, reads_left, client)
            self.running.append(made)
            return
        self._fail(body, decision)

    def _gone(self, replica: str) -> None:
        self.router.suspicion.gone(replica, self.now)

    def _page_failed(self, replica: str) -> None:
        if replica in self.down:
            self.router.suspicion.probe_failed(replica, self.now)
            self._at(SEEN_S, lambda: self._page_failed(replica))

    def _fail(self, body: bytes, decision: Decision) -> None:
        assert decision.ticket is not None
        self.router.settle(decision.ticket, DONE, self.now)
        self.failed[body] = self.now

    def kill(self, *replicas: str) -> None:
        """Kill replicas at once."""
        broken = []
        for replica in replicas:
            if replica not in self.down:
                self.down[replica] = self.now + RESTART_S
                self.deaths.append(self.now)
                self._at(SEEN_S, lambda it=replica: self._page_failed(it))
                broken += [each for each in self.running if each.replica == replica]
        self.running = [each for each in self.running if each not in broken]
        for each in broken:
            self.broken[each.body] += 1
            self._at(self._delay(), lambda it=each: self._died(it))
            if each.reads_left:
                order = [one.partition(":")[0] for one in each.decision.addresses]
                after = order.index(each.replica) + 1
                self._forward(each.body, each.decision, after, each.reads_left - 1, each.client)
            else:
                self._fail(each.body, each.decision)

    def _died(self, attempt: Attempt) -> None:
        self.router.suspicion.died(attempt.ticket, attempt.replica, self.now)

    def abandon(self, attempt: Attempt) -> None:
        """Let the client of a request leave."""
        self.running.remove(attempt)
        self._fail(attempt.body, attempt.decision)
        self._at(self._delay(), lambda: self.router.suspicion.left(attempt.replica, self.now))

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds / STEP_S)):
            self.now += STEP_S
            self.down = {name: back for name, back in self.down.items() if back > self.now}
            for ended in [each for each in self.running if each.ends <= self.now]:
                if ended in self.running:
                    self._end(ended)
            due = [each for each in self._later if each[0] <= self.now]
            self._later = [each for each in self._later if each[0] > self.now]
            for _, work in due:
                work()
            if self.now - self._swept >= 1.0:
                self._swept = self.now
                self.condemned += self.router.suspicion.sweep(self.now)

    def _end(self, attempt: Attempt) -> None:
        if attempt.body in self.deadly:
            self.died.append((self.now, attempt.replica))
            self.kill(attempt.replica)
            return
        self.running.remove(attempt)
        assert attempt.decision.ticket is not None
        self.router.settle(attempt.decision.ticket, DONE, self.now)
        self.answered.add(attempt.body)
        suspicion = self.router.suspicion
        if attempt.ticket in suspicion.open:
            self._at(
                self._delay(),
                lambda: suspicion.answered(attempt.ticket, attempt.replica, self.now),
            )

    def _at(self, delay: float, work: Callable[[], None]) -> None:
        self._later.append((self.now + delay, work))

    def _delay(self) -> float:
        return self._random.uniform(0.0, self._log_s)


def _pool(replicas: int) -> Pool:
    names = [f"r{number}" for number in range(replicas)]
    return Pool(
        "llm",
        variants=(Variant("stable", 1),),
        endpoints=tuple(
            Endpoint(EndpointKey(name, 1), "stable", http=f"{name}:8000", grpc=None)
            for name in names
        ),
        fallbacks=replicas,
    )
