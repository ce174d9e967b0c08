"""Requests and replicas against a small model of the proxy's retries, followed by feedback.

The model repeats an attempt where the law allows it, on replicas not tried yet, and writes the log
that the proxy would. Replicas fail in every way; one caller sends what no replica can do.
"""

from __future__ import annotations

import random
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ext_proc.blame.evidence import Attempt, Ended
from ext_proc.blame.law import is_good, keeps_prompt
from ext_proc.blame.retries import retry
from ext_proc.feedback.entries import AttemptEntry, Entry
from ext_proc.feedback.fold import Feedback
from ext_proc.routing.cache.trials import Confirmed, Withdrawn
from ext_proc.routing.router import Router
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.ticket import Outcome
from support.tries import tries

COUNT: Final = 4
SICK: Final = ("refuses", "breaks", "freezes", "errors", "full", "breaks off")
BAD_REQUESTS: Final = ("error", "deadly", "left")


def _address(number: int) -> str:
    return f"10.0.0.{number}:8000"


def _attempted(number: int, how: str) -> Attempt:
    """Return the attempt at a replica that behaves like this."""
    at = Attempt(_address(number), Ended.DONE, True, True, True, 200)
    nothing = at._replace(answered=False, began=False, status=0)
    return {
        "well": at,
        "refuses": nothing._replace(ended=Ended.UNREACHED, read=False),
        "breaks": nothing._replace(ended=Ended.BROKEN),
        "deadly": nothing._replace(ended=Ended.BROKEN),
        "freezes": nothing._replace(ended=Ended.TRY_TIMEOUT),
        "errors": at._replace(status=500),
        "error": at._replace(status=500),
        "full": at._replace(status=503, began=False),
        "breaks off": at._replace(ended=Ended.BROKEN),
        "left": nothing._replace(ended=Ended.LEFT),
    }[how]


class Proxy(RuleBasedStateMachine):
    """Requests of honest callers and one other, over replicas that may be sick."""

    @initialize(retry_read=st.integers(0, 1))
    def start(self, retry_read: int) -> None:
        """Start with replicas that are well."""
        self.kept: dict[int, bool] = {}
        self.router = Router(random.Random(1), on_event=self._note)
        endpoints = tuple(
            Endpoint(EndpointKey(f"r{n}", 1), "stable", http=_address(n), grpc=None)
            for n in range(COUNT)
        )
        variants = (Variant("stable", 1),)
        pool = Pool(name="llm", variants=variants, endpoints=endpoints, fallbacks=COUNT - 1)
        self.router.set_pools({"llm": pool}, 0.0)
        self.feedback = Feedback(self.router, picker="p", life="x-")
        self.retry_read = retry_read
        self.state = ["well"] * COUNT
        self.was_sick = [False] * COUNT
        self.now = 0.0
        self.judged = 0
        self.callers = 0

    def _note(self, event: object) -> None:
        """Note whether the index keeps a prompt, by ticket."""
        if isinstance(event, (Confirmed, Withdrawn)):
            self.kept[event.ticket] = isinstance(event, Confirmed)

    @rule(number=st.integers(0, COUNT - 1), how=st.sampled_from(["well", *SICK]))
    def change(self, number: int, how: str) -> None:
        """A replica falls ill or recovers."""
        self.state[number] = how
        self.was_sick[number] |= how != "well"

    @rule(seconds=st.sampled_from([0.3, 6.0, 60.0]))
    def wait(self, seconds: float) -> None:
        """Time passes; replicas show signs of life on their pages."""
        self.now += seconds
        for number in range(COUNT):
            if self.state[number] != "freezes":
                self.router.conditions.alive(EndpointKey(f"r{number}", 1), self.now)
        self.router.registry.sweep(self.now)

    @rule(logged=st.booleans(), sequence=st.booleans())
    def honest(self, *, logged: bool, sequence: bool) -> None:
        """A caller of its own sends a good request."""
        self.callers += 1
        reads = 0 if sequence else self.retry_read
        self._request(f"honest-{self.callers}", "well", reads, logged=logged)

    @rule(
        kind=st.sampled_from(BAD_REQUESTS),
        logged=st.booleans(),
        times=st.integers(1, 30),
        at=st.none() | st.integers(0, COUNT - 1),
    )
    def abusive(self, kind: str, *, logged: bool, times: int, at: int | None) -> None:
        """One caller sends what fails everywhere, breaks connections, or is not waited for.

        It may have found out how to get to one replica.
        """
        for _ in range(times):
            self._request("abusive", kind, self.retry_read, logged=logged, at=at)

    def _request(
        self, session: str, kind: str, retry_read: int, *, logged: bool, at: int | None = None
    ) -> None:
        self.now += 0.02
        features = Features(Form.GENERATE, session=session)
        subset = None if at is None else frozenset({_address(at)})
        request = Request("llm", None, "http", features, (1, 2), subset=subset)
        decision = self.router.decide(request, self.now, 0.0)
        ticket = f"x-{decision.ticket.id}"
        tried: list[Attempt] = []
        reads = retry_read
        for address in decision.addresses:
            number = int(address.split(".")[3].split(":")[0])
            how = self.state[number]
            attempt = _attempted(number, kind if how == "well" else how)
            tried.append(attempt)
            if not retry(attempt, reads):
                break
            reads -= attempt.read is True and not attempt.answered
        unanswered = [each for each in tried if each.read and not each.answered]
        assert len(unanswered) <= 1 + retry_read
        assert not any(each.began for each in tried[:-1])
        last = tried[-1]
        good = last.ended is Ended.DONE and is_good(last.status, last.grpc_status)
        for order, each in enumerate(tried if not good else tried[:-1]):
            final_only = each.ended is Ended.LEFT or each.status == 500
            if logged and not final_only:
                began = self.now + order * 0.001
                self.feedback.attempted(
                    AttemptEntry("p", ticket, "llm/stable/http", each, began, 0.001), self.now
                )
        self.router.settle(decision.ticket, Outcome.DONE, self.now)
        self._final(decision.ticket.id, decision.addresses, tried)
        if logged:
            self.judged += len(tried)
            assert self.feedback.blamed.total() == self.judged
        else:  # attempts between are guesses
            self.judged = self.feedback.blamed.total()

    def _final(self, number: int, picks: tuple[str, ...], tried: list[Attempt]) -> None:
        last = tried[-1]
        self.feedback.take(
            Entry(
                picker="p",
                ticket=f"x-{number}",
                unreadable=False,
                cluster="llm/stable/http",
                served=last.address,
                picks=",".join(picks) if len(tried) > 1 else "",
                attempts=len(tried),
                status=last.status or 503,
                grpc_status=None,
                ended=last.ended,
                read=bool(last.read),
                answered=last.answered,
                final=True,
                first_byte_s=0.01 if last.answered else None,
                answer_bytes=10,
                ended_unix_s=self.now,
                lasted_s=0.01,
            ),
            self.now,
        )
        assert self.kept.pop(number) is keeps_prompt(last)

    @invariant()
    @precondition(lambda self: hasattr(self, "router"))
    def no_caller_ejects_a_replica_that_is_well(self) -> None:
        """Whatever one caller does, a replica that was never sick has no condition."""
        for number, sick in enumerate(self.was_sick):
            if not sick:
                key = EndpointKey(f"r{number}", 1)
                assert self.router.conditions.of("llm", key) == [], self.state

    @invariant()
    @precondition(lambda self: hasattr(self, "router"))
    def what_is_kept_is_bounded(self) -> None:
        """Each request's attempts are taken with its final entry."""
        assert len(self.feedback._failed) == 0


TestProxy = Proxy.TestCase
TestProxy.settings = settings(max_examples=tries(25), stateful_step_count=40, deadline=None)
