"""A model of clients, honest and not, of a proxy and of replicas around a real router and its log.

Each honest client sends valid requests, each of its own prompt. An adversary follows a schedule:
from one second to the next it sends so many requests of one kind. Replicas do what they are told:
a well one answers each valid request with 200, one with errors answers each with 500, and one that
stands still never answers. All answer what only the content of a request decides alike.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ext_proc.blame.evidence import Ended
from ext_proc.feedback.fold import Feedback
from ext_proc.routing.router import Router
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.refusal import Refusal
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.settings import Outlier
from ext_proc.routing.values.ticket import DONE
from support.log_entries import entry

STEP_S: Final = 0.05
REPLICAS: Final = 4
POOL: Final = "llm"


class Kind(StrEnum):
    """What a request is."""

    VALID = "valid"
    WRONG = "400"
    """Answered with 400 by every replica."""
    UNREADABLE = "unreadable"
    """Answered with 500 by every replica; the picker could not read it either."""
    FAILS = "500"
    """Answered with 500 by every replica."""
    DRAWN_FAILS = "500, drawn"
    """The same, with a prompt that is cached somewhere."""
    HALF = "half"
    """An upload that stops half way."""
    LEAVES = "leaves"
    """A valid request whose client leaves before the answer."""
    LONG = "long"
    """A valid request that takes 50 s."""


class Sickness(StrEnum):
    """What a replica does with valid requests."""

    ERRORS = "errors"
    STANDS = "stands"


@dataclass
class Open:
    """A request in flight."""

    ticket: object
    key: EndpointKey
    begun: float
    kind: Kind
    ends: float


@dataclass
class Adversary:
    """A client with a schedule: (kind, requests per second) for each turn of some seconds."""

    name: str
    schedule: tuple[tuple[Kind, float], ...]
    turn_s: float = 5.0
    sessions: bool = True
    """Each request pretends to be of a session of its own."""

    def now(self, at: float) -> tuple[Kind, float]:
        """Return what it sends at a time."""
        return self.schedule[int(at / self.turn_s) % len(self.schedule)]


@dataclass
class World:
    """The model; see the module.

    Args:
        seed: Seed of all chances.
        honest: Number of honest clients, and requests per second of all of them.
        adversaries: The others.
    """

    seed: int
    honest: int = 6
    rate: float = 20.0
    adversaries: tuple[Adversary, ...] = ()
    outlier: Outlier = field(default_factory=Outlier)
    now: float = 0.0
    sick: dict[EndpointKey, Sickness] = field(default_factory=dict)
    ejected: dict[EndpointKey, float] = field(default_factory=dict)
    """When each replica was first ejected."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.router = Router(random.Random(self.seed + 1))
        self.keys = [EndpointKey(f"r{number}", 1) for number in range(REPLICAS)]
        self.address = {key: f"{key.id}:8000" for key in self.keys}
        endpoints = [Endpoint(key, "v", self.address[key], None) for key in self.keys]
        variants = (Variant("v", 1),)
        pool = Pool(POOL, variants=variants, endpoints=tuple(endpoints), outlier=self.outlier)
        self.router.set_pools({POOL: pool}, 0.0)
        self.feedback = Feedback(self.router, picker="p", life="x-")
        self.open: dict[int, Open] = {}
        self.numbers = 0
        self.failed = 0
        """Valid requests that sick replicas have failed."""

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self.now < end:
            self.step()

    def step(self) -> None:
        """Let one step pass."""
        before, self.now = self.now, self.now + STEP_S
        for number in range(self.honest):
            if self.rng.random() < self.rate / self.honest * STEP_S:
                self.send(f"honest-{number}", Kind.VALID, sessions=False)
        for each in self.adversaries:
            kind, rate = each.now(self.now)
            for _ in range(int(rate * STEP_S + self.rng.random())):
                self.send(each.name, kind, sessions=each.sessions)
        second = int(before) != int(self.now)
        self._log(running=second)
        if second:
            self.router.registry.sweep(self.now)
        for key in self.keys:
            if "ejected" in self.router.conditions.of(POOL, key):
                self.ejected.setdefault(key, self.now)

    def _log(self, *, running: bool) -> None:
        for number, one in list(self.open.items()):
            if self.now >= one.ends:
                self.end(number, one)
            elif running:
                self.still_runs(number, one)

    def send(self, client: str, kind: Kind, *, sessions: bool) -> None:
        """Send one request; most end at once."""
        self.numbers += 1
        prompt = (7, 8, 9) if kind is Kind.DRAWN_FAILS else (self.numbers * 1000,)
        features = Features(
            Form.GENERATE, model="m", session=f"s{self.numbers}" if sessions else None
        )
        request = Request(POOL, "v", "http", features, blocks=prompt, client=client)
        decision = self.router.decide(request, self.now, self.now)
        assert not isinstance(decision, Refusal)
        ticket = decision.ticket
        assert ticket is not None
        ends = self.now
        if kind is Kind.HALF or (
            kind is Kind.VALID and self.sick.get(ticket.endpoint) is Sickness.STANDS
        ):
            ends += 120.0
        elif kind is Kind.LONG:
            ends += 50.0
        one = Open(ticket, ticket.endpoint, self.now, kind, ends)
        if ends > self.now:
            self.open[ticket.id] = one
        else:
            self.end(ticket.id, one)

    def end(self, number: int, one: Open) -> None:
        """End a request, with its entry in the log."""
        self.open.pop(number, None)
        status, ended, answered = 200, Ended.DONE, True
        if one.kind in {Kind.HALF, Kind.LEAVES}:
            status, ended, answered = 0, Ended.LEFT, False
        elif one.kind is Kind.WRONG:
            status = 400
        elif one.kind in {Kind.FAILS, Kind.DRAWN_FAILS, Kind.UNREADABLE}:
            status = 500
        elif self.sick.get(one.key) is Sickness.ERRORS:
            status, self.failed = 500, self.failed + 1
        elif self.sick.get(one.key) is Sickness.STANDS:
            status, ended, answered = 0, Ended.TIMEOUT, False
        self.feedback.take(
            entry(
                ticket=f"x-{number}",
                cluster=f"{POOL}/v/http",
                served=self.address[one.key],
                picks="",
                status=status,
                ended=ended,
                answered=answered,
                unreadable=one.kind is Kind.UNREADABLE,
                first_byte_s=0.05 if answered else None,
                answer_bytes=10 if answered else 0,
                ended_unix_s=self.now,
                lasted_s=self.now - one.begun,
                delivered_at_s=None if one.kind is Kind.HALF else 0.01,
            ),
            self.now,
        )
        self.router.settle(one.ticket, DONE, self.now)

    def still_runs(self, number: int, one: Open) -> None:
        """Log that a request runs."""
        self.feedback.take(
            entry(
                ticket=f"x-{number}",
                cluster=f"{POOL}/v/http",
                served=self.address[one.key],
                picks="",
                status=0,
                answered=False,
                final=False,
                first_byte_s=None,
                answer_bytes=0,
                ended_unix_s=self.now,
                lasted_s=self.now - one.begun,
                delivered_at_s=None if one.kind is Kind.HALF else 0.01,
            ),
            self.now,
        )
