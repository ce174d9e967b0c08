"""The plan of a rollout, with defaults by traffic. Pure."""

from __future__ import annotations

from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING, Final, NamedTuple

from pydantic import ValidationError

from xds_server.applications.canary.evidence import DEFAULT, Margins
from xds_server.applications.canary.judgement import BUDGET

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xds_server.fleet.model.canary import CanarySpec

MAX_STEPS: Final = 20
MAX_MINUTE_S: Final = 60.0
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
    minute_s: float = 60.0
    """Seconds of evidence that are judged together, and at least between two looks; below 60 only
    where steps take seconds, as in tests: few sessions at a time prove less."""
    shadow: bool = False
    """Whether copies of requests come before the first step, for ``least_s``."""


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


def with_words(spec: CanarySpec, words: Mapping[str, str]) -> CanarySpec:
    """Return the settings with others for one rollout.

    Args:
        spec: What the fleet file says.
        words: Other values by field, as text; of lists with commas between.

    Raises:
        CanaryPlanError: There is no such field, or a value is none of it.
    """
    told: dict[str, object] = spec.model_dump(mode="json")
    for name, text in words.items():
        if name not in told:
            raise CanaryPlanError(f"no setting '{name[:64]}' of canary; it has {', '.join(told)}")
        listed = isinstance(told[name], list)
        told[name] = [each.strip() for each in text.split(",") if each.strip()] if listed else text
    if told["least_time"] is None:
        del told["least_time"]
    try:
        return type(spec).model_validate({name: _bare(value) for name, value in told.items()})
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False)
        where = ".".join(map(str, first["loc"]))
        raise CanaryPlanError(f"canary.{where}: {first['msg']}".replace(".:", ":")) from None


def _bare(value: object) -> object:
    """Return a text as the number that it is; a duration may be one."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def plan_of(spec: CanarySpec, sessions_per_s: float | None) -> CanaryPlan:
    """Return the plan that a fleet file describes, with defaults by traffic.

    Args:
        spec: What the file says.
        sessions_per_s: As in ``default_plan``.

    Raises:
        CanaryPlanError: It breaks a rule.
    """
    usual = default_plan(sessions_per_s)
    least_s = usual.least_s if spec.least_time is None else spec.least_time
    return sound(
        CanaryPlan(
            spec.steps or usual.steps,
            least_s,
            spec.least_sessions,
            Undecided(spec.undecided),
            max(spec.undecided_after, least_s),
            spec.budget,
            Margins(spec.failures, spec.failures_below / WHOLE, spec.slower / WHOLE),
            spec.window,
            spec.shadow,
        )
    )


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
    if not 0.0 < plan.minute_s <= MAX_MINUTE_S:
        raise CanaryPlanError(f"minute_s: must be above 0 and at most {MAX_MINUTE_S:g}")
    if not 0.0 < plan.budget < 1.0:
        raise CanaryPlanError("budget: must be above 0 and below 1")
    return plan
