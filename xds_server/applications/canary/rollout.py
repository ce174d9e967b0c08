"""The states of a rollout and what comes next: evidence and events in, transitions out. Pure.

Rules:

1. What ends a rollout comes first: a guard that ends it, then a canary that is worse. Both set the
   canary's weight to what it was before the rollout.
2. A frozen controller makes no transition by itself, neither forward nor back. It says what it
   would do.
3. Weights that are not those of the step were set by hand: the rollout pauses and touches them
   no more until an operator resumes it.
4. A step on the way needs its least time, its least sessions of the canary and no guard that holds
   it. 100 % also needs a judgement that is good. Too little traffic therefore never passes.
   Before the first step, copies of requests need the least time and no guard (``plan.shadow``).
5. Undecided after its time, the last step before 100 % waits, pauses or aborts, as the plan says.
6. *Restart.* A transition is stored as ``pending`` before the weights change, and settled after.
   After a restart ``settled`` compares the weights in force: those of the pending step = it was
   done; those of the step before = it is done again; others = rule 3.
7. A paused rollout is judged and not stepped: it still ends by rule 1, unless its weights
   were set by hand.
"""

from __future__ import annotations

from enum import StrEnum
from math import exp
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xds_server.applications.canary.evidence import shown
from xds_server.applications.canary.plan import WHOLE, CanaryPlan, Undecided

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xds_server.applications.canary.judgement import Judgement

MAX_REASON: Final = 400
"""Characters of a transition's reason."""
_TOLERANCE: Final = 0.05
"""Difference of two shares in percent that rounding of weights makes."""


class RolloutPhase(StrEnum):
    """Where a rollout is; the value is the word."""

    RUNNING = "running"
    PAUSED = "paused"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled-back"
    ABORTED = "aborted"

    @property
    def ended(self) -> bool:
        """Whether nothing comes any more."""
        return self not in {RolloutPhase.RUNNING, RolloutPhase.PAUSED}


class Transition(NamedTuple):
    """What is to be done."""

    phase: RolloutPhase
    step: int
    reason: str
    touched: bool = False
    """Whether its cause is that weights were set by hand (rule 3)."""


class RolloutState(NamedTuple):
    """All that a restart needs, beside the evidence."""

    phase: RolloutPhase
    step: int
    """Number of the step in force, from 0; -1 = before the first."""
    since_s: float
    """Unix time at which the step began."""
    begun: int
    """Canary sessions that had begun in the rollout when the step began."""
    reason: str = ""
    touched: bool = False
    """Whether the weights were set by hand (rule 3)."""
    pending: Transition | None = None
    """A transition that is under way."""

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {**self._asdict(), "phase": self.phase.value}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> RolloutState:
        """Return the state that ``dump`` returned."""
        told = dict(state)
        pending = told["pending"]
        if pending is not None:
            told["pending"] = Transition(RolloutPhase(pending[0]), *pending[1:])
        return cls(**{**told, "phase": RolloutPhase(told["phase"])})


class CanaryGuard(NamedTuple):
    """An event that decides without statistics."""

    ends: bool
    """``False`` = it holds the step."""
    why: str


class RolloutView(NamedTuple):
    """What is known at a moment."""

    now_s: float
    """Unix time."""
    percent: float | None
    """The canary's share of the weights in force; ``None`` = the variant is gone."""
    judgement: Judgement
    begun: int
    """Canary sessions that have begun in the rollout."""
    guards: Sequence[CanaryGuard] = ()
    missing: Sequence[str] = ()
    """Pickers that are not heard: their part of the evidence is missing."""


class ActionError(ValueError):
    """A rollout cannot do what an operator asks for; the message says why."""


def percent_of(state: RolloutState, plan: CanaryPlan) -> float:
    """Return the canary's share that belongs to a state, in percent."""
    if state.phase in {RolloutPhase.ROLLED_BACK, RolloutPhase.ABORTED} or state.step < 0:
        return 0.0
    return WHOLE if state.phase is RolloutPhase.PROMOTED else plan.steps[state.step]


def begun(now_s: float) -> RolloutState:
    """Return the state before the first step."""
    return RolloutState(RolloutPhase.RUNNING, -1, now_s, 0)


def following(
    state: RolloutState, plan: CanaryPlan, seen: RolloutView, *, frozen: bool = False
) -> Transition | None:
    """Return what is to be done now; ``None`` = nothing."""
    if state.phase.ended or state.pending is not None or frozen or state.touched:
        return None
    return _end(state, plan, seen) or (
        None if state.phase is RolloutPhase.PAUSED else _forward(state, plan, seen)
    )


def _end(state: RolloutState, plan: CanaryPlan, seen: RolloutView) -> Transition | None:
    """Return what stops the rollout (rules 1 and 3)."""
    if seen.percent is None or abs(seen.percent - percent_of(state, plan)) > _TOLERANCE:
        reason = _by_hand(seen.percent, percent_of(state, plan))
        return Transition(RolloutPhase.PAUSED, state.step, reason, touched=True)
    ending = next((each for each in seen.guards if each.ends), None)
    if ending is not None:
        return Transition(RolloutPhase.ROLLED_BACK, state.step, _cut(ending.why))
    if seen.judgement.worse:
        return Transition(RolloutPhase.ROLLED_BACK, state.step, _worse(seen.judgement, plan))
    return None


def waiting_for(state: RolloutState, plan: CanaryPlan, seen: RolloutView) -> list[str]:
    """Return what the next step still needs, in words; nothing = it may come."""
    found = [f"{each.why} (holds the step)" for each in seen.guards if not each.ends]
    found += [f"picker {each} is not heard" for each in seen.missing]
    left_s = state.since_s + plan.least_s - seen.now_s
    if left_s > 0.0:
        found.append(f"{left_s:.0f} s of the step's least time of {plan.least_s:.0f} s")
    if state.step < 0:
        return found
    lacking = plan.least_sessions - (seen.begun - state.begun)
    if lacking > 0:
        found.append(f"{lacking} of {plan.least_sessions} sessions of the canary")
    if _is_last(state, plan):
        for each in seen.judgement.missing:
            about = "" if each.minutes is None else f", about {each.minutes} min"
            found.append(f"{each.check}: {each.why}{about}")
    return found


def asked(state: RolloutState, plan: CanaryPlan, verb: str, who: str) -> Transition:
    """Return what an operator asks for.

    Args:
        state: The state.
        plan: The plan.
        verb: ``pause``, ``resume``, ``promote`` or ``abort``.
        who: The operator, for the reason.

    Raises:
        ActionError: The rollout cannot do that.
    """
    if state.phase.ended:
        raise ActionError(f"{verb}: the rollout has ended ({state.phase.value}): start another")
    if state.pending is not None:
        raise ActionError(f"{verb}: a step is under way: ask again when it is done")
    phase, step = state.phase, state.step
    if verb == "pause":
        phase = RolloutPhase.PAUSED
    elif verb == "resume":
        if phase is not RolloutPhase.PAUSED:
            raise ActionError("resume: the rollout runs: nothing to do")
        phase = RolloutPhase.RUNNING
    elif verb == "promote":
        phase, step = RolloutPhase.PROMOTED, len(plan.steps) - 1
    elif verb == "abort":
        phase = RolloutPhase.ABORTED
    else:
        raise ActionError(f"{verb}: not an action; pause, resume, promote and abort are")
    return Transition(phase, step, _cut(f"{verb} by {who}"))


def applied(
    state: RolloutState, transition: Transition, now_s: float, sessions: int
) -> RolloutState:
    """Return the state after a transition.

    Args:
        state: The state before it.
        transition: What was done.
        now_s: Unix time.
        sessions: Canary sessions that have begun in the rollout.
    """
    phase, step, reason, touched = transition
    moved = step != state.step
    return RolloutState(
        phase,
        step,
        now_s if moved else state.since_s,
        sessions if moved else state.begun,
        reason,
        touched,
    )


def settled(
    state: RolloutState, plan: CanaryPlan, percent: float | None, now_s: float
) -> tuple[RolloutState, Transition | None]:
    """Return the state after a restart, and the transition that is to be done again (rule 6)."""
    if state.pending is None:
        return state, None
    pending, before = state.pending, state._replace(pending=None)
    after = applied(before, pending, now_s, state.begun)
    if percent is not None and abs(percent - percent_of(after, plan)) <= _TOLERANCE:
        return after, None
    if percent is not None and abs(percent - percent_of(before, plan)) <= _TOLERANCE:
        return before, pending
    reason = _by_hand(percent, percent_of(after, plan))
    return before._replace(phase=RolloutPhase.PAUSED, touched=True, reason=reason), None


def _forward(state: RolloutState, plan: CanaryPlan, seen: RolloutView) -> Transition | None:
    if state.step < 0:
        if plan.shadow and waiting_for(state, plan, seen):
            return None
        share = f"{plan.steps[0]:g} %"
        return Transition(RolloutPhase.RUNNING, 0, f"step 1 of {len(plan.steps)}: {share}")
    if not waiting_for(state, plan, seen):
        number = state.step + 1
        sessions = seen.begun - state.begun
        said = f"after {seen.now_s - state.since_s:.0f} s and {sessions} sessions of the canary"
        if _is_last(state, plan):
            return Transition(
                RolloutPhase.PROMOTED, number, f"100 %: no worse in all checks, {said}"
            )
        share = f"{plan.steps[number]:g} %"
        return Transition(
            RolloutPhase.RUNNING, number, f"step {number + 1} of {len(plan.steps)}: {share} {said}"
        )
    undecided = seen.now_s - state.since_s >= plan.undecided_after_s
    if not undecided or not _is_last(state, plan) or plan.undecided is Undecided.WAIT:
        return None
    lacking = "; ".join(waiting_for(state, plan, seen))
    reason = _cut(f"undecided after {plan.undecided_after_s:.0f} s: {lacking}")
    phase = RolloutPhase.ABORTED if plan.undecided is Undecided.ABORT else RolloutPhase.PAUSED
    return Transition(phase, state.step, reason)


def _is_last(state: RolloutState, plan: CanaryPlan) -> bool:
    return state.step == len(plan.steps) - 2


def _by_hand(percent: float | None, expected: float) -> str:
    if percent is None:
        return "the canary's variant is gone from the pool"
    return f"the weights were set by hand: {percent:g} % in place of {expected:g} %"


def _worse(judgement: Judgement, plan: CanaryPlan) -> str:
    least = min(judgement.log_worse, 40.0)
    return (
        f"worse: {judgement.blames}; the evidence of all checks is {shown(least):.0f}, "
        f"{1.0 / plan.budget:.0f} ends a rollout (chance {min(1.0, exp(-least)):.1g} if it is not)"
    )


def _cut(text: str) -> str:
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 1] + "…"
