"""A rollout from its start to its end: reports of pickers in, weights and reasons out. Pure.

Rules:

1. *Draw.* Envoy and pickers draw ``hash % total`` over the weights. ``total`` is drawn for each
   rollout, so the sessions that get one canary are not those that got the one before; within a
   rollout it stays, and the canary's interval only grows.
2. A rollout starts on a pool where stable has all of the weight. After its end the weights are
   those of before, or all of it is the canary's.
3. ``look`` returns what is to be done. The caller stores ``dump`` (with the transition as pending),
   changes the weights as one revision with the reason, and calls ``done``. After a restart it
   calls ``resumed`` with the weights in force (``rollout.py``, rule 6).
4. Times pass only where the canary's replicas carry their load (``judgement.py``, rule 3).
5. ``log`` keeps all transitions, at most ``MAX_LOG``; beyond, the oldest but the first go.
   ``transitions`` counts them, with those of the pool's rollouts before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xds_server.applications.canary.book import SessionBook
from xds_server.applications.canary.evidence import CanaryEvidence, Margins, shown
from xds_server.applications.canary.guards import (
    NO_ALERTS,
    ArmReplicas,
    PoolAlerts,
    guards_of,
    load_of,
)
from xds_server.applications.canary.judgement import Judgement, judge
from xds_server.applications.canary.plan import WHOLE, CanaryPlan, Undecided, sound
from xds_server.applications.canary.rollout import (
    RolloutPhase,
    RolloutState,
    RolloutView,
    Transition,
    applied,
    asked,
    begun,
    following,
    percent_of,
    settled,
    waiting_for,
)
from xds_server.fleet.view import CanaryMark

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tidegate_common.canary import SessionRecord

TOTALS: Final = range(1_000_003, 2_000_003)
"""Totals of weights that are drawn: a share is right to a millionth."""
MAX_LOG: Final = 200
VERSION: Final = 1
"""Of ``dump``."""


class StartError(ValueError):
    """A rollout cannot start; the message says why."""


class RolloutSpec(NamedTuple):
    """What a rollout is about."""

    rollout: str
    """Its id."""
    pool: str
    canary: str
    stable: str
    before: Mapping[str, int]
    """The weights of all variants before it."""
    total: int
    """See the module's rule 1."""
    began_s: float = 0.0
    """Unix time at which it began."""


class LogLine(NamedTuple):
    """A transition that was made."""

    at_s: float
    """Unix time."""
    phase: str
    percent: float
    reason: str


def spec_of(
    rollout: str,
    pool: str,
    weights: Mapping[str, int],
    canary: str,
    chance: float,
    began_s: float = 0.0,
) -> RolloutSpec:
    """Return what a rollout of a variant is about.

    Args:
        rollout: Its id.
        pool: The pool's name.
        weights: The pool's weights by variant.
        canary: The variant that is to get everything.
        chance: A random number in [0, 1).
        began_s: Unix time.

    Raises:
        StartError: The pool's weights do not allow it.
    """
    if canary not in weights:
        raise StartError(f"pool {pool}: no variant {canary}; it has {', '.join(sorted(weights))}")
    if weights[canary]:
        raise StartError(f"pool {pool}: {canary} has a weight already; set it to 0 first")
    drawn = [name for name, weight in weights.items() if weight]
    if len(drawn) != 1:
        said = ", ".join(drawn) or "none"
        raise StartError(f"pool {pool}: one variant must have all of the weight; now {said}")
    total = TOTALS[int(chance * len(TOTALS))]
    return RolloutSpec(rollout, pool, canary, drawn[0], dict(weights), total, began_s)


class CanaryController:
    """One rollout; see the module's rules.

    Args:
        spec: What it is about.
        plan: How it goes.
        now_s: Unix time.
        kinds: The kinds of times that the pool can measure.
        cache: Whether its replicas tell cached tokens.
        transitions: Transitions of the pool's rollouts before it.

    Raises:
        CanaryPlanError: The plan breaks a rule.
    """

    def __init__(
        self,
        spec: RolloutSpec,
        plan: CanaryPlan,
        now_s: float,
        *,
        kinds: Sequence[str] = ("first-token",),
        cache: bool = False,
        transitions: int = 0,
    ) -> None:
        self.spec, self.plan = spec, sound(plan)
        self.state = begun(now_s)
        self.evidence = CanaryEvidence(plan.margins, kinds, cache=cache)
        self.book = SessionBook(int(now_s // plan.minute_s), self._shares(), plan.minute_s)
        self.log: list[LogLine] = []
        self.transitions = transitions
        self.folded = 0
        """Minutes that this process has added to the evidence."""

    @property
    def mark(self) -> CanaryMark:
        """What pickers are told of it."""
        spec = self.spec
        weights = tuple(self._weight(each) for each in self.plan.steps[:-1])
        return CanaryMark(spec.rollout, spec.canary, spec.stable, weights, spec.total)

    @property
    def running(self) -> bool:
        """Whether it has not ended; a paused one has not."""
        return not self.state.phase.ended

    @property
    def copies(self) -> bool:
        """Whether the canary gets copies of requests now, before its first step."""
        state = self.state
        return self.plan.shadow and state.step < 0 and not state.phase.ended

    def take(
        self, picker: str, records: Iterable[SessionRecord], limit: int, until_s: float
    ) -> None:
        """Take a picker's report; see ``SessionBook.take``."""
        self.book.take(picker, records, limit, until_s)

    def look(
        self,
        now_s: float,
        weights: Mapping[str, int],
        canary: ArmReplicas,
        stable: ArmReplicas,
        *,
        alerts: PoolAlerts = NO_ALERTS,
        frozen: bool = False,
    ) -> Transition | None:
        """Return what is to be done now; ``None`` = nothing.

        Args:
            now_s: Unix time.
            weights: The pool's weights in force.
            canary: The canary's replicas.
            stable: Stable's.
            alerts: The pool's alerts.
            frozen: Whether automatic steps are off everywhere.
        """
        for minute in self.book.close(now_s):
            self.evidence.fold(minute)
            self.folded += 1
        view = self.view(now_s, weights, canary, stable, alerts=alerts)
        return following(self.state, self.plan, view, frozen=frozen)

    def view(
        self,
        now_s: float,
        weights: Mapping[str, int],
        canary: ArmReplicas,
        stable: ArmReplicas,
        *,
        alerts: PoolAlerts = NO_ALERTS,
    ) -> RolloutView:
        """Return what is known; see ``look``."""
        now, step = percent_of(self.state, self.plan), self.state.step
        after = self.plan.steps[min(step + 1, len(self.plan.steps) - 1)]
        return RolloutView(
            now_s,
            self._percent(weights),
            self.judgement(load_of(now, canary.usable, stable.usable)),
            self.evidence.begun[0],
            guards_of(canary, stable, now, after, alerts),
            self.book.silent(now_s),
        )

    def judgement(self, load: float | None) -> Judgement:
        """Return what the evidence allows at a load of the canary's replicas."""
        return judge(self.evidence.checks(), load=load, budget=self.plan.budget)

    def ask(self, verb: str, who: str) -> Transition:
        """Return what an operator asks for.

        Raises:
            ActionError: The rollout cannot do that.
        """
        return asked(self.state, self.plan, verb, who)

    def weights_after(self, transition: Transition) -> Mapping[str, int] | None:
        """Return the weights that belong to a transition; ``None`` = they stay as they are."""
        if transition.touched:
            return None
        return self._weights(applied(self.state, transition, 0.0, 0))

    def intend(self, transition: Transition) -> None:
        """Note a transition as pending, before the weights change."""
        self.state = self.state._replace(pending=transition)

    def copying(self, now_s: float) -> None:
        """Take it as begun with copies of requests."""
        self.state = self.state._replace(reason="copies of all requests first")
        self._note(now_s)

    def done(self, transition: Transition, now_s: float) -> None:
        """Take a transition as made."""
        before = self.state._replace(pending=None)
        self.state = applied(before, transition, now_s, self.evidence.begun[0])
        self._note(now_s)

    def resumed(self, weights: Mapping[str, int], now_s: float) -> Transition | None:
        """Go on after a restart; return the transition that is to be made again."""
        was = self.state
        self.state, again = settled(self.state, self.plan, self._percent(weights), now_s)
        if self.state is not was and again is None:
            self._note(now_s)
        return again

    def waiting_for(self, view: RolloutView) -> list[str]:
        """Return what the next step still needs, in words."""
        if self.state.phase.ended:
            return []
        return waiting_for(self.state, self.plan, view)

    def dump(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        plan = self.plan._asdict()
        plan |= {"undecided": self.plan.undecided.value, "margins": self.plan.margins._asdict()}
        return {
            "version": VERSION,
            "spec": {**self.spec._asdict(), "before": dict(self.spec.before)},
            "plan": plan,
            "state": self.state.dump(),
            "evidence": self.evidence.dump(),
            "book": self.book.dump(),
            "log": list(self.log),
            "transitions": self.transitions,
        }

    @classmethod
    def restored(cls, told: Mapping[str, Any]) -> CanaryController:
        """Return the rollout that ``dump`` returned.

        Raises:
            ValueError: It is of another version.
        """
        if told["version"] != VERSION:
            raise ValueError(f"rollout of version {told['version']}; this server has {VERSION}")
        margins = Margins(**told["plan"]["margins"])
        plan = CanaryPlan(
            **{
                **told["plan"],
                "steps": tuple(told["plan"]["steps"]),
                "undecided": Undecided(told["plan"]["undecided"]),
                "margins": margins,
            }
        )
        made = cls(RolloutSpec(**told["spec"]), plan, told["state"]["since_s"])
        made.state = RolloutState.restored(told["state"])
        made.evidence = CanaryEvidence.restored(margins, told["evidence"])
        made.book = SessionBook.restored(told["book"], made._shares(), plan.minute_s)
        made.log = [LogLine(*each) for each in told["log"]]
        made.transitions = told.get("transitions", len(made.log))
        return made

    def _shares(self) -> list[float]:
        return [each / WHOLE for each in self.plan.steps[:-1]]

    def _percent(self, weights: Mapping[str, int]) -> float | None:
        """Return the canary's share; other variants' weights count as set by hand."""
        spec = self.spec
        if spec.canary not in weights:
            return None
        total = sum(weights.values())
        others = total - weights[spec.canary] - weights.get(spec.stable, 0)
        return -1.0 if not total or others else WHOLE * weights[spec.canary] / total

    def _weights(self, state: RolloutState) -> dict[str, int]:
        spec, percent = self.spec, percent_of(state, self.plan)
        if percent <= 0.0:
            return dict(spec.before)
        canary = self._weight(percent)
        shares = {spec.canary: canary, spec.stable: spec.total - canary}
        return {name: shares.get(name, 0) for name in spec.before}

    def _weight(self, percent: float) -> int:
        return round(self.spec.total * percent / WHOLE)

    def _note(self, now_s: float) -> None:
        state = self.state
        percent = percent_of(state, self.plan)
        self.log.append(LogLine(now_s, state.phase.value, percent, state.reason))
        self.transitions += 1
        if len(self.log) > MAX_LOG:
            del self.log[1]


def report_of(controller: CanaryController) -> dict[str, Any]:
    """Return what was compared, with intervals, and what it cost, as JSON values.

    The cost has what no closed minute has counted yet, too: a guard may end a rollout within one.
    """
    evidence, spec = controller.evidence, controller.spec
    low, high = evidence.failure_interval()
    new, new_failed = controller.book.uncounted()
    sessions = [sum(each) for each in zip(evidence.begun, new, strict=True)]
    failed = [sum(each) for each in zip(evidence.failed, new_failed, strict=True)]
    return {
        "rollout": spec.rollout,
        "pool": spec.pool,
        "canary": spec.canary,
        "stable": spec.stable,
        "phase": controller.state.phase.value,
        "percent": percent_of(controller.state, controller.plan),
        "reason": controller.state.reason,
        "sessions": {"canary": sessions[0], "stable": sessions[1]},
        "failed_sessions": {"canary": failed[0], "stable": failed[1]},
        "failure_ratio": {"low": low, "high": high},
        "checks": [
            {
                "check": each.name,
                "worse": shown(each.log_worse),
                "not_worse": shown(each.log_not_worse),
                "condition": each.condition,
            }
            for each in evidence.checks()
        ],
        "log": [each._asdict() for each in controller.log],
    }


def line_of(controller: CanaryController, lacking: Sequence[str]) -> str:
    """Return the rollout in one line.

    Args:
        controller: The rollout.
        lacking: What the next step still needs.
    """
    spec, state = controller.spec, controller.state
    share = f"{percent_of(state, controller.plan):g} %"
    if controller.copies:
        share = "copies, 0 %"
    said = f"canary {spec.pool}: {spec.canary} at {share}, {state.phase.value}"
    if state.phase is RolloutPhase.RUNNING:
        if not lacking:
            return said
        more = f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
        return f"{said}; waits for {lacking[0]}{more}"
    return f"{said}: {state.reason}" if state.reason else said
