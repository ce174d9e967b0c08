"""The law "one in, one out", and the book of what clients sent and replicas got.

1. Every byte on a connection to a replica belongs to an attempt of a case, or to a health check.
   A request must name a case that is under way; nothing follows it before it is answered.
2. The bytes of an attempt's body are the case's body from its first byte on. They are all of it,
   unless the client, the replica or Envoy broke off: then the connection, or the HTTP/2 stream,
   ends there. The proxy may change how a body is framed (a length, chunks, frames), path
   normalisation, header names' case, and headers of its own; it may drop trailers on HTTP/1.1 and
   passes them whole or not at all elsewhere.
3. A case has one attempt. A further one follows only what ``docs/explanation/retries.md`` repeats:
   no more than ``READS`` after an attempt that a replica read and broke off, none of a sequence or
   a stream, no more than ``ATTEMPTS`` in all, none after an answer that has begun, and each at
   another replica while the picker's list has one. A shadow gets at most one copy.
   What the picker reads in part, or message by message, is repeated only once its client has sent
   its end, and never if trailers are that end.
4. What may be repeated is: small requests whose failures the rules above allow for are answered.
5. A client gets the answer to its own request, whole, from the last attempt, or a refusal. What is
   well framed and within bounds is not refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from support.framing.cases import BUSY, CASE_HEADER, CLOSES, MAX_BODY, Case, loses_its_end

READS, DECLINES = 1, 2
"""Repeats of a request that was read, and of one that was declined: ``routing.retry_read``,
``routing.fallbacks``."""
ATTEMPTS = 1 + READS + DECLINES
SETTLING = 64
"""A case is judged once so many more have ended: what comes late is still accounted to it."""
FAILURES = frozenset((*CLOSES, *BUSY, "refuse", "cut", "early"))
"""Actions after which the client may get an answer that is not the replica's."""
ENDS = ("cut", "early")
"""Of these the actions that end a request."""
SMALL = 4096
"""Bodies up to this size, in bytes, can always be repeated."""
MOST = 20
"""Violations that are kept."""


@dataclass
class Attempt:
    """One request that a replica got."""

    case: Case
    replica: str
    number: int
    """Of the attempts of its case, from 0; copies to the shadow count by themselves."""
    action: str
    client_done: bool
    """Whether the client had sent its end before the attempt began."""
    got: int = 0
    """Bytes of the body."""
    wrong: str = ""
    """What is wrong with the bytes."""
    whole: bool = False
    """Whether the request came to its end."""
    over: bool = False
    """Whether no more of it will come."""
    answered: bool = False
    """Whether the replica has begun to answer."""
    trailers: list[tuple[str, str]] = field(default_factory=list)
    picks: int = 0
    """Number of replicas in the picker's list."""
    sent: int = 0
    """Envoy's number of the attempt, from 1: some may have ended before a replica saw them."""

    def take(self, data: bytes) -> None:
        """Compare bytes of the body with those that were sent."""
        expected = self.case.body[self.got : self.got + len(data)]
        if data != expected and not self.wrong:
            at = next(
                (i for i, (a, b) in enumerate(zip(data, expected, strict=False)) if a != b),
                len(expected),
            )
            self.wrong = f"byte {self.got + at} of {len(self.case.body)} is not the client's"
        self.got += len(data)


@dataclass
class Outcome:
    """What a client got."""

    status: int = 0
    """0 = nothing that makes sense."""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = False
    """Whether the answer came to its end."""
    left: bool = False
    """Whether the client broke off."""


class Running:
    """A case under way."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.attempts: list[Attempt] = []
        self.copies: list[Attempt] = []
        self.client_done = False
        """Whether the client has sent its end."""
        self.outcome: Outcome | None = None


class Book:
    """All cases and violations."""

    def __init__(self) -> None:
        self.running: dict[int, Running] = {}
        self.violations: list[str] = []
        self.guilty: list[int] = []
        """Numbers of the cases of the violations."""
        self.count: Counter[str] = Counter()
        self.beat: Callable[[], asyncio.Future[None]] | None = None
        """Waits until a few requests that are sent now have been answered."""
        self._ended: deque[Running] = deque()

    # --- what happens ---------------------------------------------------------------------------

    def begin(self, case: Case) -> Running:
        """Enter a case."""
        made = self.running[case.number] = Running(case)
        return made

    def attempt(self, number: str, replica: str, *, copy: bool = False) -> Attempt | None:
        """Enter a request that a replica got; ``None`` if it belongs to no case under way."""
        running = self.running.get(int(number)) if number.isdigit() else None
        if running is None:
            return None
        entered = running.copies if copy else running.attempts
        action = "answer" if copy else running.case.action(len(entered))
        made = Attempt(running.case, replica, len(entered), action, running.client_done)
        entered.append(made)
        return made

    def violated(self, what: str, case: Case | None = None) -> None:
        """Enter a violation."""
        self.count["violations"] += 1
        if len(self.violations) < MOST:
            self.violations.append(f"{what}: {case}")
            if case is not None:
                self.guilty.append(case.number)

    def end(self, running: Running, outcome: Outcome) -> None:
        """Enter what a client got."""
        running.outcome = outcome
        self._ended.append(running)
        while len(self._ended) > SETTLING:
            if not all(each.over for each in self._ended[0].attempts + self._ended[0].copies):
                if len(self._ended) < 20 * SETTLING:
                    break
                self.violated("a request at a replica does not end", self._ended[0].case)
            self._close(self._ended.popleft())

    def settle(self) -> None:
        """Judge all cases that have ended; nothing more may come of them."""
        while self._ended:
            self._close(self._ended.popleft())

    def forget(self) -> None:
        """Begin anew with violations and figures."""
        self.violations.clear()
        self.guilty.clear()
        self.count.clear()

    def _close(self, running: Running) -> None:
        self.running.pop(running.case.number, None)
        self.count["cases"] += 1
        for what in judge(running):
            self.violated(what, running.case)
        self._tell(running)

    def _tell(self, running: Running) -> None:
        case, outcome = running.case, running.outcome
        assert outcome is not None
        kind = "left" if outcome.left else str(outcome.status) if outcome.status else "broken"
        self.count[f"{case.front} {kind}"] += 1
        self.count["attempts"] += len(running.attempts)
        self.count["repeated"] += len(running.attempts) > 1
        self.count["copies"] += len(running.copies)


def judge(running: Running) -> list[str]:
    """Return how an ended case breaks the law."""
    return [*_bytes(running), *_repeats(running), *_answer(running)]


def _bytes(running: Running) -> list[str]:
    case, outcome = running.case, running.outcome
    assert outcome is not None
    found = []
    for each in running.attempts + running.copies:
        at = f"attempt {each.number} at {each.replica}"
        if each.wrong:
            found.append(f"{at}: {each.wrong}")
        if each.whole and each.got != len(case.body) and not case.malformed:
            found.append(f"{at} ended after {each.got} of {len(case.body)} bytes")
        if each.trailers and each.trailers != TRAILERS:
            found.append(f"{at} has the trailers {each.trailers}")
        may_be_cut = (
            outcome.left
            or outcome.status != 200  # Envoy's own refusal ends what it had begun
            or case.malformed
            or each.action != "answer"
            or each in running.copies
        )
        if not each.whole and not may_be_cut:
            found.append(f"{at} was cut off after {each.got} of {len(case.body)} bytes")
    return found


TRAILERS = [("x-checksum", "7"), ("x-more", "abc")]
"""The trailers of each case that has some."""


def _repeats(running: Running) -> list[str]:
    case, attempts = running.case, running.attempts
    found = []
    if len(running.copies) > 1:
        found.append(f"{len(running.copies)} copies at the shadow")
    if running.copies and not case.shadow:
        found.append("a copy that its pool does not make")
    if len(attempts) > ATTEMPTS:
        found.append(f"{len(attempts)} attempts")
    replicas = [each.replica for each in attempts]
    picks = attempts[0].picks if attempts else 0
    if len(set(replicas)) < min(len(replicas), picks):
        numbers = [each.sent for each in attempts]
        found.append(f"repeated at the same replica: {replicas} {numbers} of {picks} picks")
    found += _declined(attempts[:-1])
    reads = 0
    further = 0 if case.sequence or case.form == "stream" else READS
    for each in attempts[:-1]:
        if each.answered and each.action not in BUSY:
            found.append(f"repeated after {each.replica} had answered ({each.action})")
        elif each.action in BUSY and case.form == "stream":
            found.append("a stream was repeated")
        elif each.action not in BUSY:
            reads += 1
    found += _known_ends(case, attempts[1:])
    if reads > further:
        found.append(f"{reads} further replicas read it, of {further}: {replicas}")
    return found


def _declined(repeated: list[Attempt]) -> list[str]:
    """Judge how often a case was repeated that replicas had declined."""
    declined = sum(each.action in BUSY for each in repeated)
    return [f"repeated after {declined} had declined it"] if declined > DECLINES else []


def _known_ends(case: Case, repeats: list[Attempt]) -> list[str]:
    """Judge repeats of a case whose end the picker may not have known."""
    if not repeats or not (case.peeked or case.mode == "duplex"):
        return []
    if case.trailers and not case.front.startswith("http") and case.body:
        return ["repeated although trailers end it"]
    return [] if all(each.client_done for each in repeats) else ["repeated before its end"]


def _is_owed(case: Case) -> bool:
    """Return whether replicas must answer the case in the end, which is simple enough to say so."""
    simple = case.readable and len(case.body) <= SMALL and not case.cuts and not case.slow
    if not simple or case.malformed or case.form == "stream" or case.trailers:
        return False
    reads = declines = 0
    for number in range(ATTEMPTS):
        action = case.action(number)
        if action not in FAILURES:
            return True
        reads += action not in BUSY
        declines += action in BUSY
        if declines > DECLINES:
            return False
        if action in ENDS or reads > (0 if case.sequence else READS):
            return False
    return False


def _answer(running: Running) -> list[str]:
    case, outcome, attempts = running.case, running.outcome, running.attempts
    assert outcome is not None
    if outcome.left:
        return []
    told = outcome.headers.get(CASE_HEADER)
    if told is None:
        return _refusal(running, outcome)
    if told != str(case.number):
        return [f"the client got the answer to case {told}"]
    last = attempts[-1] if attempts else None
    if last is None or outcome.headers.get("x-replica") != last.replica:
        return [f"answered by {outcome.headers.get('x-replica')}, not by the last attempt"]
    return _content(case, last, outcome)


def _content(case: Case, last: Attempt, outcome: Outcome) -> list[str]:
    """Judge the content of the last attempt's answer."""
    if last.action in BUSY:
        return (
            [] if outcome.status in {200, 503} else [f"status {outcome.status} of a busy replica"]
        )
    if last.action == "cut" or case.malformed:
        right = case.answer.startswith(outcome.body)
    else:
        right = outcome.body == case.answer
    return [] if right else [f"an answer of {len(outcome.body)} bytes, not {len(case.answer)}"]


def _refusal(running: Running, outcome: Outcome) -> list[str]:
    """Judge an outcome that no replica has given."""
    case, attempts = running.case, running.attempts
    status, why = outcome.status, outcome.headers.get("x-tidegate-reason", "")
    if case.malformed or not case.readable:
        return [] if status != 200 or case.form != "infer" else ["an answer of nobody"]
    too_large = case.mode == "full" and len(case.body) > MAX_BODY
    # All attempts are spent, or the case is not to be repeated.
    failed = bool(attempts) and attempts[-1].action in FAILURES
    # Envoy sends a body twice that trailers end, so they may be refused.
    reasons = {"trailers", "length-required"} if case.front.startswith("http") else {"trailers"}
    trailing = case.trailers and why in reasons
    # Envoy may lose the end of such a body, so it may be refused.
    unmeasured = why == "length-required" and loses_its_end(case)
    if (too_large or failed or trailing or unmeasured) and not _is_owed(case):
        return []
    text = outcome.body[:80].decode("latin1")
    return [f"refused with {status} {why} {outcome.headers.get('grpc-message', '')} {text}"]
