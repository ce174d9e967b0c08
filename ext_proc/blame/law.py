"""The law of evidence: from what is known of one attempt to exactly one verdict. Pure.

Rules:

1. The first row of ``RULES`` that holds is the verdict; the last row always holds. The table in the
   documentation is generated from these rows.
2. The caller is blamed for what it asked, the request for failing on several replicas alike, we for
   our own timeouts and limits, the network for connections that carried nothing or that broke while
   the replica served others. Only what remains is the replica's fault.
3. Blame is a word for reports; ``Effect`` is what ejection makes of the attempt, and a row's
   ``marks`` say what it is for each use. A failure that its request may have caused counts by
   client (``origins``). One that a request cannot cause, or that a sibling's good answer proves to
   be the replica's, counts at once.
4. An answer that the content of its request alone decides, such as 400, shows that the process
   lives and nothing else: it ends no row of failures, is no part of a share of them, brings no
   ejected replica back, and is no progress of a replica that stands still.
5. Timeouts of our own are never a failure of the replica. Our bound on the time to a first answer
   says that the replica was silent for so long, which matters for a frozen replica only. A timeout
   that the caller chose says nothing.
6. Learning, the prefix index, the placement and suspicion of a death follow from the attempt by the
   functions below, which agree with the rows' marks, and retries by ``retries``. No other module
   keeps a rule about them.
7. An answer has begun with the first byte of its body. Headers alone are no evidence: servers on
   uvicorn send them before the engine has read the prompt, and also while the engine is stuck.

Statuses as Triton uses them: 400 and 404 for a caller's mistakes, 500 for a failed execution but
also for malformed JSON, 503 for a full queue.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.blame.evidence import Ended

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ext_proc.blame.evidence import Attempt, Evidence


class Blame(StrEnum):
    """Who is at fault for an attempt."""

    NONE = "none"
    """The attempt succeeded."""
    REPLICA = "replica"
    REQUEST = "request"
    """The request fails wherever it is sent."""
    CALLER = "caller"
    """The caller made a mistake or left."""
    NETWORK = "network"
    US = "us"
    """Our own timeouts, limits and routes."""


class Effect(StrEnum):
    """What ejection makes of an attempt."""

    GOOD = "good"
    """A good answer, whose times are samples."""
    ANSWERED = "answered"
    """A sign of life of the process; its content is the request's doing."""
    ALIVE = "alive"
    """A sign of life of the engine."""
    SILENT = "silent"
    """No sign of life since the attempt began: evidence for a frozen replica only."""
    AT_ONCE = "at once"
    """A failure."""
    BY_ORIGIN = "by origin"
    """A failure that counts once for each origin."""
    NOTHING = "nothing"


class Mark(StrEnum):
    """What an attempt is, for one use of it."""

    GOOD = "good"
    ALIVE = "alive"
    FAILED = "failed"
    BY_CLIENT = "failed, by client"
    SILENT = "silent"
    NOTHING = "nothing"


class Marks(NamedTuple):
    """What an attempt is, for each use of it."""

    ejection: Mark
    """``GOOD`` ends a row of failures, closes a half-open replica and counts in the share."""
    frozen: Mark
    """``ALIVE``: the engine makes progress. ``SILENT``: it was given the whole request and gave
    nothing back."""
    deadly: Mark
    """``ALIVE``: the replica has survived the request. ``FAILED``: it may have died of it."""
    speed: Mark
    """``GOOD``: the time to its first byte is a sample."""
    placement: Mark
    """``FAILED``: the replica lacks the model."""
    reuse: Mark
    """``GOOD``: if a byte of an answer below 400 came, the prompt is in the replica's cache."""


class Rule(NamedTuple):
    """One row of the law."""

    outcome: str
    """Label of the row in metrics; several rows may share one."""
    words: str
    """The evidence, in words, for the documentation."""
    holds: Callable[[Evidence], bool]
    blame: Blame
    effect: Effect
    deadly: Mark = Mark.NOTHING
    speed: Mark = Mark.NOTHING
    placement: Mark = Mark.NOTHING
    reuse: Mark = Mark.NOTHING

    @property
    def marks(self) -> Marks:
        """What an attempt of this row is, for each use."""
        ejection, frozen = _HEALTH[self.effect]
        return Marks(ejection, frozen, self.deadly, self.speed, self.placement, self.reuse)


_HEALTH: Final = {
    Effect.GOOD: (Mark.GOOD, Mark.ALIVE),
    Effect.ANSWERED: (Mark.ALIVE, Mark.NOTHING),
    Effect.ALIVE: (Mark.ALIVE, Mark.ALIVE),
    Effect.SILENT: (Mark.NOTHING, Mark.SILENT),
    Effect.AT_ONCE: (Mark.FAILED, Mark.NOTHING),
    Effect.BY_ORIGIN: (Mark.BY_CLIENT, Mark.NOTHING),
    Effect.NOTHING: (Mark.NOTHING, Mark.NOTHING),
}
"""What each effect means for ejection, and for a replica that may be frozen."""

FIRST_ERROR: Final = 400
"""HTTP statuses from here on are errors."""
_NOT_FOUND: Final = 404
_GRPC_NOT_FOUND: Final = 5
_SERVER_ERRORS: Final = frozenset({500, 502, 503, 504})
_GRPC_SERVER_ERRORS: Final = frozenset({2, 13, 14})
"""UNKNOWN, INTERNAL, UNAVAILABLE."""


def is_good(status: int, grpc_status: int | None) -> bool:
    """Return whether a complete answer is no error."""
    return 0 < status < FIRST_ERROR and not grpc_status


def _is_server_error(attempt: Attempt) -> bool:
    return attempt.status in _SERVER_ERRORS or attempt.grpc_status in _GRPC_SERVER_ERRORS


def _ended(evidence: Evidence, ended: Ended) -> bool:
    return evidence.attempt.ended is ended


def _timed_out(evidence: Evidence) -> bool:
    return _ended(evidence, Ended.TIMEOUT) or _ended(evidence, Ended.TRY_TIMEOUT)


def _failed_answer(evidence: Evidence) -> bool:
    return _ended(evidence, Ended.DONE) and _is_server_error(evidence.attempt)


RULES: Final = (
    Rule(
        "local",
        "the proxy refused or answered by itself",
        lambda e: (
            _ended(e, Ended.LOCAL)
            or (_ended(e, Ended.DONE) and (e.attempt.address is None or e.attempt.read is False))
        ),
        Blame.US,
        Effect.NOTHING,
    ),
    Rule(
        "left",
        "the caller left after the answer had begun",
        lambda e: _ended(e, Ended.LEFT) and e.attempt.began,
        Blame.CALLER,
        Effect.ALIVE,
        deadly=Mark.ALIVE,
        speed=Mark.GOOD,
        reuse=Mark.GOOD,
    ),
    Rule(
        "left",
        "the caller left before an answer",
        lambda e: _ended(e, Ended.LEFT),
        Blame.CALLER,
        Effect.NOTHING,
    ),
    Rule(
        "timeout",
        "our timeout ended an answer that had begun",
        lambda e: _timed_out(e) and e.attempt.began,
        Blame.US,
        Effect.ALIVE,
        deadly=Mark.ALIVE,
        reuse=Mark.GOOD,
    ),
    Rule(
        "timeout",
        "our bound on the time to a first answer; the replica had been sent the request",
        lambda e: _ended(e, Ended.TRY_TIMEOUT) and e.attempt.read is not False,
        Blame.US,
        Effect.SILENT,
    ),
    Rule(
        "timeout",
        "our timeout of the whole request, or the caller's, before an answer",
        _timed_out,
        Blame.US,
        Effect.NOTHING,
    ),
    Rule(
        "unreached",
        "no connection, and the process was replaced",
        lambda e: _ended(e, Ended.UNREACHED) and e.restarted is True,
        Blame.REPLICA,
        Effect.AT_ONCE,
    ),
    Rule(
        "unreached",
        "no connection: refused, timed out",
        lambda e: _ended(e, Ended.UNREACHED),
        Blame.NETWORK,
        Effect.AT_ONCE,
    ),
    Rule(
        "broken",
        "the connection broke before the replica was sent the request",
        lambda e: _ended(e, Ended.BROKEN) and e.attempt.read is False and not e.attempt.answered,
        Blame.NETWORK,
        Effect.AT_ONCE,
    ),
    Rule(
        "broken",
        "the answer broke off",
        lambda e: _ended(e, Ended.BROKEN) and e.attempt.began,
        Blame.REPLICA,
        Effect.BY_ORIGIN,
        deadly=Mark.ALIVE,
        reuse=Mark.GOOD,
    ),
    Rule(
        "broken",
        "the connection broke unanswered, and the process was replaced",
        lambda e: _ended(e, Ended.BROKEN) and e.restarted is True,
        Blame.REPLICA,
        Effect.AT_ONCE,
        deadly=Mark.FAILED,
    ),
    Rule(
        "broken",
        "the connection broke unanswered; another replica answered the request well",
        lambda e: _ended(e, Ended.BROKEN) and e.sibling_well,
        Blame.REPLICA,
        Effect.AT_ONCE,
        deadly=Mark.FAILED,
    ),
    Rule(
        "broken",
        "the connection broke unanswered, on each replica that the request was sent to",
        lambda e: _ended(e, Ended.BROKEN) and e.alike,
        Blame.REQUEST,
        Effect.NOTHING,
        deadly=Mark.FAILED,
    ),
    Rule(
        "broken",
        "the connection broke unanswered; the replica answered others well meanwhile",
        lambda e: _ended(e, Ended.BROKEN) and e.others_well is True,
        Blame.NETWORK,
        Effect.BY_ORIGIN,
        deadly=Mark.FAILED,
    ),
    Rule(
        "broken",
        "the connection broke unanswered, and nothing else is known",
        lambda e: _ended(e, Ended.BROKEN),
        Blame.REPLICA,
        Effect.BY_ORIGIN,
        deadly=Mark.FAILED,
    ),
    Rule(
        "good",
        "an answer: 2xx, 3xx, gRPC OK",
        lambda e: is_good(e.attempt.status, e.attempt.grpc_status),
        Blame.NONE,
        Effect.GOOD,
        deadly=Mark.ALIVE,
        speed=Mark.GOOD,
        reuse=Mark.GOOD,
    ),
    Rule(
        "client",
        "a server error to a body that the picker could not read or found wrong",
        lambda e: _failed_answer(e) and e.unreadable,
        Blame.CALLER,
        Effect.ANSWERED,
    ),
    Rule(
        "error",
        "a server error (500, 502, 503, 504; gRPC UNKNOWN, INTERNAL, UNAVAILABLE);"
        " another replica answered the request well",
        lambda e: _failed_answer(e) and e.sibling_well,
        Blame.REPLICA,
        Effect.AT_ONCE,
    ),
    Rule(
        "error",
        "a server error, as from each replica that the request was sent to",
        lambda e: _failed_answer(e) and e.alike,
        Blame.REQUEST,
        Effect.ANSWERED,
    ),
    Rule(
        "error",
        "a server error, and nothing else is known",
        _failed_answer,
        Blame.REPLICA,
        Effect.BY_ORIGIN,
    ),
    Rule(
        "client",
        "404, gRPC NOT_FOUND",
        lambda e: lacks_model(e.attempt),
        Blame.CALLER,
        Effect.ANSWERED,
        deadly=Mark.ALIVE,
        placement=Mark.FAILED,
    ),
    Rule(
        "client",
        "another error: 400, 422, 429; gRPC codes of the caller, DEADLINE_EXCEEDED among them",
        lambda e: e.attempt.status > 0 or bool(e.attempt.grpc_status),
        Blame.CALLER,
        Effect.ANSWERED,
        deadly=Mark.ALIVE,
    ),
    Rule(
        "local",
        "no answer, and no reason",
        lambda _: True,
        Blame.US,
        Effect.NOTHING,
    ),
)
"""The law, in order: who could have caused what happened, and what it is for each use."""


def ruling(evidence: Evidence) -> Rule:
    """Return the row of the law that holds."""
    return next(rule for rule in RULES if rule.holds(evidence))


def verdict(evidence: Evidence) -> Blame:
    """Return who is at fault."""
    return ruling(evidence).blame


class Sign(NamedTuple):
    """One row on a request that is still running."""

    words: str
    holds: Callable[[bool, bool], bool]
    """Whether the client has sent all of it, and whether a byte of an answer came."""
    frozen: Mark


SIGNS: Final = (
    Sign("a byte of an answer came", lambda _, answered: answered, Mark.ALIVE),
    Sign("the client is still sending", lambda delivered, _: not delivered, Mark.NOTHING),
    Sign(
        "the client has sent all of it; no byte of an answer came", lambda _, __: True, Mark.SILENT
    ),
)
"""What a running request says of its replica; the first row that holds decides."""


def sign(*, delivered: bool, answered: bool) -> Mark:
    """Return what a running request says of its replica.

    Args:
        delivered: Its client has sent all of it.
        answered: A byte of an answer came.
    """
    return next(each.frozen for each in SIGNS if each.holds(delivered, answered))


# --- What follows from an attempt alone ---------------------------------------------------------


def stands_alone(attempt: Attempt) -> bool:
    """Return whether siblings cannot change the verdict, so that it need not wait for them."""
    if attempt.ended is Ended.BROKEN:
        return attempt.began or (attempt.read is False and not attempt.answered)
    return attempt.ended is not Ended.DONE or not _is_server_error(attempt)


def fails_alike(attempt: Attempt, other: Attempt) -> bool:
    """Return whether two attempts at different replicas failed in the same way.

    Only failures that a request may cause are compared: unanswered, or answered with an error.
    """
    if attempt.address == other.address or attempt.ended is not other.ended:
        return False
    if attempt.ended is Ended.BROKEN:
        return not any(each.began or each.read is False for each in (attempt, other))
    return attempt.ended is Ended.DONE and _is_server_error(attempt) and _is_server_error(other)


def all_alike(attempts: Sequence[Attempt]) -> bool:
    """Return whether a request failed alike wherever it was sent, on two replicas or more.

    Attempts that did not reach a replica do not count.
    """
    sent = [each for each in attempts if each.reached and each.read is not False]
    return len(sent) > 1 and all(fails_alike(sent[0], each) for each in sent[1:])


_TIMEOUTS: Final = (Ended.TRY_TIMEOUT, Ended.TIMEOUT)


def suspected_death(attempt: Attempt) -> bool:
    """Return whether the replica may have died of what it had read: it broke off unanswered."""
    return attempt.ended is Ended.BROKEN and attempt.read is True and not attempt.began


def survived(attempt: Attempt) -> bool:
    """Return whether the replica is known to have survived a request: an answer began, no 5xx."""
    answered = attempt.began or (attempt.answered and attempt.ended is Ended.DONE)
    return answered and not _is_server_error(attempt)


def lacks_model(attempt: Attempt) -> bool:
    """Return whether the replica answered that it does not have what was asked for."""
    missing = attempt.status == _NOT_FOUND or attempt.grpc_status == _GRPC_NOT_FOUND
    return missing and attempt.ended is Ended.DONE


def abandons(attempt: Attempt) -> bool:
    """Return whether the replica was left with work whose caller has gone."""
    waited = attempt.ended is Ended.LEFT or attempt.ended in _TIMEOUTS
    return waited and attempt.read is not False and not attempt.answered


def keeps_prompt(attempt: Attempt) -> bool:
    """Return whether the replica has computed the prompt: an answer below 400 had begun."""
    return attempt.began and is_good(attempt.status, attempt.grpc_status)
