"""A router of three replicas, and entries of access logs about them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from ext_proc.blame.evidence import Attempt, Ended
from ext_proc.feedback.entries import AttemptEntry, Entry
from ext_proc.feedback.fold import Feedback
from ext_proc.routing.router import Router
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.ticket import Outcome

if TYPE_CHECKING:
    from collections.abc import Collection


R1, R2 = EndpointKey("r1", 1), EndpointKey("r2", 1)


def address(number: int) -> str:
    return f"10.0.0.{number}:8000"


def made() -> tuple[Router, Feedback]:
    router = Router(random.Random(1))
    endpoints = tuple(
        Endpoint(EndpointKey(f"r{n}", 1), "stable", http=address(n), grpc=None) for n in (1, 2, 3)
    )
    pool = Pool(name="llm", variants=(Variant("stable", 1),), endpoints=endpoints)
    router.set_pools({"llm": pool}, 0.0)
    return router, Feedback(router, picker="p", life="x-")


def entry(**changes) -> Entry:
    usual = {
        "picker": "p",
        "ticket": "x-1",
        "unreadable": False,
        "cluster": "llm/stable/http",
        "served": address(1),
        "picks": ",".join(address(n) for n in (1, 2, 3)),
        "attempts": 1,
        "status": 200,
        "grpc_status": None,
        "ended": Ended.DONE,
        "read": True,
        "answered": True,
        "final": True,
        "first_byte_s": 0.1,
        "answer_bytes": 10,
        "ended_unix_s": 0.0,
    }
    return Entry(**{**usual, **changes})


class Traffic:
    """Requests of sessions, and what the log says of them."""

    def __init__(self) -> None:
        self.router, self.feedback = made()
        self.now = 0.0
        self.started = 0

    def sent(self, session: str | None, blocks: tuple[int, ...] = ()) -> str:
        """Decide a request of a session; return its ticket."""
        features = Features(form=Form.GENERATE, model="m", session=session)
        request = Request("llm", None, "http", features, blocks)
        ticket = self.router.decide(request, self.now, 0.0).ticket
        self.router.settle(ticket, Outcome.DONE, self.now)
        return f"x-{ticket.id}"

    def answered(self, session: str | None, number: int, **changes) -> str:
        """Apply the final entry of a request of a session that the replica of a number served."""
        self.now += 0.2
        ticket = self.sent(session)
        return self.feedback.take(entry(ticket=ticket, served=address(number), **changes), self.now)

    def asked(self, session: str | None, sick: Collection[int] = ()) -> int:
        """Send a request where the router says, to replicas some of which fail; return where."""
        self.now += 0.2
        features = Features(form=Form.GENERATE, model="m", session=session)
        request = Request("llm", None, "http", features, body=b"same")
        decision = self.router.decide(request, self.now, 0.0)
        self.router.settle(decision.ticket, Outcome.DONE, self.now)
        served = decision.addresses[0]
        number = int(served.split(":")[0].rpartition(".")[2])
        ticket = f"x-{decision.ticket.id}"
        status = 500 if number in sick else 200
        self.feedback.take(entry(ticket=ticket, served=served, status=status), self.now)
        return number

    def attempted(self, ticket: str, number: int, ended: Ended = Ended.BROKEN, **changes) -> None:
        """Apply the entry of a failed attempt at the replica of a number."""
        usual = {"read": True, "answered": False, "began": False, "status": 0}
        attempt = Attempt(address(number), ended, **{**usual, **changes})
        self.started += 1
        self.feedback.attempted(
            AttemptEntry("p", ticket, "llm/stable/http", attempt, float(self.started), 0.01),
            self.now,
        )

    def conditions(self, key: EndpointKey) -> list[str]:
        return self.router.conditions.of("llm", key)
