"""Experiment on one replica: whether failures are its own, or those of requests sent there. Pure.

Rules:

1. A replica whose last result, or too large a share of them, are failures that requests may have
   caused becomes the subject of an experiment: chance decides which requests it gets. One that
   nothing draws anywhere goes there with the probability of ``fair_share``, whatever the load. One
   that is drawn to it (by a cached prompt, a hash) goes there with probability ``DRAWN``, after
   ``SUSPICIOUS`` failures in a row, as moving it has a cost.
2. If the requests are at fault, each failure is on the subject with just that probability,
   whatever clients send, know or guess. So the odds against it are a bet: a failure there
   multiplies them, one elsewhere divides them, and so on average they stay what they are. They
   reach e**x at most once in e**x experiments (Ville's inequality), at whatever time one looks;
   a little more often in those where failures elsewhere brought them to ``LEAST``.
3. Odds of the row: a good answer elsewhere is evidence too, because a good one of the subject ends
   the row, and the odds begin anew.
4. A row is judged once the others have given as many good answers as there are replicas, so that
   no burst of failures between two answers of the subject, in its turn, is a row to judge.
5. Odds of the failures alone are kept beyond the row, for a replica that fails a part of its
   requests; they do not fall below 1.
6. Each client (``blame.origins``) has odds of its own, so that failures which one client causes
   everywhere hide nothing that others show. No client's odds count for more than ``MOST`` of what
   ejects, so that two must be unlucky on the subject, unless all good answers are one client's. One
   client beside others needs ``LONE_ODDS``.
   Where as many clients were lately answered well by the subject, the rest needs ``OUTVOTED``.
7. A false alarm counts against the clients that caused it, and against no others.
8. The odds of a client among others keep from one row to the next what it failed elsewhere, or one
   that fails everywhere could try its luck with each row.
9. At most ``MAX_CLIENTS`` clients have odds of their own on one replica; further ones are one.
"""

from __future__ import annotations

from math import exp, log, log1p
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.values.pool import EndpointKey

SUSPICIOUS: Final = 2
DRAWN: Final = 0.5
LEAST_SHARE: Final = 0.1
"""Of one in n; a replica that gave no answer yet must be able to show whether it can."""
MANY: Final = 32
"""Replicas up to which each request has all of them to choose from (``pipeline.sampling``)."""
FEW: Final = 16
"""Replicas that count where there are more: about as many as a request has to choose from."""
MIN_ANSWERS: Final = 10.0
"""Good answers for each replica from which shares of them are known."""
STAKE: Final = 0.95
"""Share of the odds that is bet on the next failure being the subject's. The rest survives failures
elsewhere, as a sick replica does not keep all requests elsewhere from failing."""
LEAST: Final = log(1.0 - STAKE)
"""Least odds of a row, those after one failure elsewhere: bad requests in any number must not hide
that the subject becomes sick."""
DEBT: Final = -12.0
"""Least odds of a row of a client among others; bad requests of one hide nothing of the others'."""
DEBT_S: Final = 60.0
"""Seconds in which what it failed elsewhere weighs a third, from one row to the next."""
ROW_ODDS: Final = 2.5
"""Logarithm of the odds that eject for failures in a row, where there were no false alarms."""
SHARE_ODDS: Final = 7.0
"""The same for a failure share; experiments on one go on for longer."""
MAX_SUSPECTS: Final = 8
"""Experiments at a time, as each decision looks at them; further suspects wait."""
MORE_ODDS: Final = 2.0
"""What each false alarm takes from the odds of a client that caused it."""
LONE_ODDS: Final = 6.0
"""Odds beyond those that eject which a single client must show, where others are answered well."""
OUTVOTED: Final = 4.0
"""Odds beyond those of a row, where as many clients had a good answer of the subject last, within
the window, as have failures in the row."""
MOST: Final = 0.75
"""Share of the odds that eject which one client may give."""
MAX_CLIENTS: Final = 16
OTHERS: Final = -1
"""The client of all that have no odds of their own."""


def fair_share(own: float, total: float, replicas: int) -> float:
    """Return the probability with which a subject gets a request that nothing draws anywhere.

    It is one in ``replicas`` (one in ``FEW`` of a sample), but no more than what a replica with
    less than half of that is used to, such as a small one, and ``LEAST_SHARE`` of it at least.

    Args:
        own: Good answers of the subject, lately.
        total: Those of all replicas of its variant.
        replicas: Their number, above 1.
    """
    if replicas > MANY:
        return 1.0 / FEW
    usual, fair = own / max(total, 1.0), 1.0 / replicas
    if total < MIN_ANSWERS * replicas or 2.0 * usual >= fair:
        return fair
    return max(usual, LEAST_SHARE * fair)


class Part(NamedTuple):
    """What a request's part in an experiment is."""

    subject: EndpointKey
    share: float
    """Probability with which chance sends requests of its kind to the subject."""
    gets_it: bool
    """The subject gets this one."""


def identity(key: EndpointKey, *, drawn: bool, gets_it: bool) -> tuple[object, ...]:
    """Return what takes the place of the origin of a request that is part of an experiment.

    Args:
        key: The subject.
        drawn: The request is drawn to it.
        gets_it: The subject gets the request.
    """
    return "experiment", key.id, drawn, gets_it


class Experiment:
    """Odds that one replica's failures are its own, as one client's requests show them.

    They are logarithms; see the module's rules.
    """

    __slots__ = ("bad", "failures", "row")

    def __init__(self) -> None:
        self.bad = 0
        """The client's failures in the row on the subject."""
        self.row = 0.0
        """Odds by all results of the row."""
        self.failures = 0.0
        """Odds by failures, since the replica's record began."""

    def failed(self, share: float, *, here: bool, alone: bool = True) -> None:
        """Note a failed request.

        Args:
            share: Probability with which chance sent it to the subject, above 0 and below 1.
            here: Whether it failed there.
            alone: All good answers of late are the client's.
        """
        change = log(1.0 - STAKE + STAKE / share) if here else log(1.0 - STAKE)
        self.row = max(self.row + change, LEAST if alone else DEBT)
        self.failures = max(self.failures + change, 0.0)

    def begin(self, after_s: float, *, alone: bool) -> None:
        """Begin a row; what a client among others has failed elsewhere stays against it.

        Args:
            after_s: Seconds since the last failure.
            alone: All good answers of late are the client's.
        """
        self.bad = 0
        self.row = 0.0 if alone else min(self.row, 0.0) * exp(-max(after_s, 0.0) / DEBT_S)

    def answered_elsewhere(self, share: float) -> None:
        """Note a good answer of another replica; ``share`` as in ``failed``."""
        self.row -= log1p(-share)


def shown(odds: Sequence[float], least: float, *, alone: bool) -> bool:
    """Return whether clients' odds show that failures are the subject's (rule 6).

    Args:
        odds: Logarithm of each client's odds, less what its false alarms take.
        least: Logarithm of the odds that eject.
        alone: All good answers of late are one client's.
    """
    if not odds:
        return False
    best = max(odds)
    if best >= (least if alone else least + LONE_ODDS):
        return True
    return sum(min(each, MOST * least) for each in odds if each > 0.0) >= least
