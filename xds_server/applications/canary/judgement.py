"""What the evidence allows: checks in, a judgement out. Pure.

Rules:

1. The canary is worse when the weighted mean of all checks' e-values against "worse by at most the
   margin" reaches ``1 / budget``. If it is not worse, that happens with a probability of at most
   ``budget``, over the whole rollout and all checks together.
2. It is good when *each* condition's e-value against "worse by the margin or more" is at least
   ``1 / budget``. If it is worse in any of them, all reach that with at most that probability.
3. Times count as passed only where the canary's replicas carry at least ``FULL_LOAD`` of the work
   of stable's: a replica that is less busy is faster.
4. What is missing is said check by check, with the minutes until it is reached at the pace of the
   last ones.
"""

from __future__ import annotations

from math import ceil, inf, log
from typing import TYPE_CHECKING, Final, NamedTuple

from xds_server.applications.canary.statistics.mixture import log_weighted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xds_server.applications.canary.evidence import CanaryCheck

BUDGET: Final = 0.05
"""Probability of a wrong decision, over a whole rollout."""
FULL_LOAD: Final = 0.8


class Unproven(NamedTuple):
    """A condition that is not met yet."""

    check: str
    why: str
    minutes: int | None
    """About how long until it is; ``None`` = the pace does not lead there."""


class Judgement(NamedTuple):
    """What the evidence allows."""

    worse: bool
    log_worse: float
    """The weighted mean's logarithm."""
    blames: str
    """The check that contributes most to it."""
    missing: Sequence[Unproven]
    """What is missing for 100 %."""

    @property
    def good(self) -> bool:
        """Whether 100 % is allowed."""
        return not self.worse and not self.missing

    @property
    def minutes(self) -> int | None:
        """Minutes until nothing is missing, at the pace of the last ones; ``None`` = not known."""
        known = [each.minutes for each in self.missing]
        return None if None in known else max((m for m in known if m is not None), default=0)


def judge(
    checks: Sequence[CanaryCheck], *, load: float | None = None, budget: float = BUDGET
) -> Judgement:
    """Return what the checks allow.

    Args:
        checks: At least one.
        load: Work of the canary's replicas over that of stable's, each for a replica of the same
            share; ``None`` = not known, which counts as too little.
        budget: Probability of a wrong decision, above 0 and below 1.
    """
    wanted = -log(budget)
    mean = log_weighted((each.weight, each.log_worse) for each in checks)
    blamed = max(checks, key=lambda each: log(each.weight) + each.log_worse)
    missing = [
        found
        for each in checks
        if each.condition and (found := _missing(each, wanted, load)) is not None
    ]
    return Judgement(mean >= wanted, mean, blamed.name, missing)


def _missing(check: CanaryCheck, wanted: float, load: float | None) -> Unproven | None:
    if check.timed and (load is None or load < FULL_LOAD):
        carried = "an unknown share" if load is None else f"{load:.0%}"
        why = f"the canary's replicas carry {carried} of the work of stable's, less than"
        return Unproven(check.name, f"{why} {FULL_LOAD:.0%}", None)
    left = wanted - check.log_not_worse
    if left <= 0.0:
        return None
    minutes = None if not check.gain or check.gain <= 0.0 else left / check.gain
    share = max(0.0, check.log_not_worse / wanted)
    why = f"{share:.0%} of the evidence that it is not worse"
    return Unproven(check.name, why, None if minutes in {None, inf} else ceil(minutes or 0.0))
