"""The plan of a rollout, with defaults by traffic. Pure."""

from __future__ import annotations

from enum import StrEnum
from math import isfinite
from typing import Final, NamedTuple

from xds_server.applications.canary.evidence import DEFAULT, Margins
from xds_server.applications.canary.judgement import BUDGET

MAX_STEPS: Final = 20
WHOLE: Final = 100.0
LITTLE: Final = 5.0
"""Sessions per second below which a pool has little traffic."""
MUCH: Final = 60.0
"""Sessions per second from which on it has much."""
LEAST_SESSIONS: Final = 50
"""Canary sessions that a step needs by default."""


class Undecided(StrEnum):
    """What becomes of a rollout that is not decided in its time; the value is the word."""

    WAIT = "wait"
    PAUSE = "pause"
    ABORT = "abort"


class CanaryPlanError(ValueError):
    """A plan cannot be followed; the message says why."""


class CanaryPlan(NamedTuple):
    """How a canary goes to 100 %."""

    steps: tuple[float, ...]
    """Percent of new sessions, rising; the last is 100."""
    least_s: float
    """Seconds that each step takes at least."""
    least_sessions: int = LEAST_SESSIONS
    """Canary sessions that each step needs at least."""
    undecided: Undecided = Undecided.PAUSE
    undecided_after_s: float = 86_400.0
    """Seconds after which the last step before 100 % counts as undecided."""
    budget: float = BUDGET
    """Probability of a wrong decision, over the whole rollout."""
    margins: Margins = DEFAULT


def default_plan(sessions_per_s: float | None) -> CanaryPlan:
    """Return the plan for a pool without one of its own.

    Args:
        sessions_per_s: Sessions that begin in the pool; ``None`` = not known, taken for little.
    """
    if sessions_per_s is None or sessions_per_s < LITTLE:
        return CanaryPlan((20.0, 50.0, WHOLE), 3_600.0)
    if sessions_per_s < MUCH:
        return CanaryPlan((5.0, 25.0, 50.0, WHOLE), 600.0)
    return CanaryPlan((1.0, 10.0, 50.0, WHOLE), 600.0)


def sound(plan: CanaryPlan) -> CanaryPlan:
    """Return the plan.

    Raises:
        CanaryPlanError: It breaks a rule.
    """
    if not 1 < len(plan.steps) <= MAX_STEPS:
        raise CanaryPlanError(f"steps: {len(plan.steps)} of them; a plan has 2 to {MAX_STEPS}")
    rising = all(one < other for one, other in zip(plan.steps, plan.steps[1:], strict=False))
    if not rising or plan.steps[0] <= 0.0 or plan.steps[-1] != WHOLE:
        raise CanaryPlanError("steps: percentages must rise from above 0 to 100")
    if not (isfinite(plan.least_s) and plan.least_s > 0.0):
        raise CanaryPlanError("least_s: must be above 0")
    if plan.least_sessions < 1:
        raise CanaryPlanError(
            "least_sessions: must be 1 or more: without sessions nothing is known"
        )
    if plan.undecided_after_s < plan.least_s:
        raise CanaryPlanError("undecided_after_s: must not be below least_s")
    if not 0.0 < plan.budget < 1.0:
        raise CanaryPlanError("budget: must be above 0 and below 1")
    return plan
