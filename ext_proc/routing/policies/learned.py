"""learned: ``auto``, corrected by what its own decisions turned out to cost.

Formula: among the candidates whose price by ``auto`` is at most 25 % above the best one, that with
the least predicted ``cost = seconds / expected``, if it beats the pick of ``auto`` by 0.05. The
prediction is linear in nine features of the candidate (``features``: drain, uncached prefill,
pending, slowness, KV cache, ramp, age and queue of its readings) and learned from each finished
request (``model``). ``expected`` is what the pool's usual replica needs for a request of this size,
idle and cold, so that long prompts do not rule the lesson.

It begins in the shadow: ``auto`` decides, and on ``explore`` of the requests a candidate of the
same set drawn at random is tried, with known probability. From these the value of the policy is
told without it ever having decided (``value``). Once it is better with 95 % confidence over
``min_decisions`` it acts, inside the rails of ``guard``; where it tries alternatives then, it takes
the one that LinUCB calls most promising.

Inputs: those of ``auto``, and how long each request took. Defaults: 10,000 decisions, 1 % tried.
Use it for: fleets whose replicas differ in ways that no price says, under steady traffic.
Not for: small or quiet pools (it never leaves the shadow, and then is ``auto``); the first hours.

Guarantees:

* It never takes a candidate above 125 % of the best price by ``auto``.
* It tries alternatives on at most 2 % of the requests, on none above 80 % utilisation or with a
  priority.
* It acts only while ``guard`` says so; ``auto`` decides the control share, and everything after a
  trip.
* Memory is bounded, and reasons name the model's version: ``learned-3``.

A pick changes what the next one finds, which a bandit does not model, and lessons of a busy hour
are wrong in a quiet one: hence the small set, the forgetting and the rails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from ext_proc.routing.learning.features import NAMES, dark, expected_s, features, utilisation
from ext_proc.routing.learning.guard import CONTROL, Guard, GuardState
from ext_proc.routing.learning.model import Linear
from ext_proc.routing.learning.value import Value
from ext_proc.routing.policies.auto import Auto
from ext_proc.routing.policies.base import Policy
from ext_proc.routing.values.settings import USUAL_LEARNING
from ext_proc.routing.values.ticket import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ext_proc.routing.state.context import SchedulingContext
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.ticket import Ticket

NEAR: Final = 1.25
MARGIN: Final = 0.05
"""Predictions that differ by less, as a share of what is expected, are alike, and left to ``auto``:
equal replicas would otherwise all be passed over for one."""
BUSY: Final = 0.8
MOST_COST: Final = 10.0
OPTIMISM: Final = 1.0
"""LinUCB's alpha."""
MOST_OPEN: Final = 50_000
"""Decisions kept until they end."""
SHADOW_ARMS: Final = ("shadow", "explore")
LIVE_ARMS: Final = ("act", "control", "optimist")
TRIALS: Final = ("explore", "optimist")
ENDINGS: Final = (Outcome.DONE, Outcome.ABORTED)


class ShadowSample(NamedTuple):
    """One decision, as far as its end can teach something; indices are those of its offer."""

    done: int
    incumbent: int
    targets: Sequence[int]
    propensity: float
    arm: str
    """``shadow`` and ``explore`` judge the policy; ``act``, ``control`` and ``optimist`` are those
    of the live one; ``idle`` ones teach the model only."""
    x: Sequence[float]
    predicted: Mapping[int, float]
    expected: float


class Learned(Policy):
    """A contextual bandit over ``auto``."""

    everyone: ClassVar[bool] = False
    copies: ClassVar[bool] = True
    learns: ClassVar[bool] = True

    def __init__(self) -> None:
        self._settings = USUAL_LEARNING
        self._incumbent = Auto()
        self.model = Linear(len(NAMES))
        self.value = Value()
        self.guard = Guard()
        self._draft: tuple[SchedulingContext, ShadowSample] | None = None
        """Of the latest question: a note for ``picked``, which no price depends on."""
        self._noted: ShadowSample | None = None
        self._open: dict[int, ShadowSample] = {}
        self._explored = self._decided = 0

    def configure(self, pool: Pool) -> None:
        """Take the pool's ``learned`` settings; what was learned stays."""
        self._settings = pool.learned

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return the prices of ``auto``, with the candidate that was decided for in front."""
        prices = list(self._incumbent.prices(context))
        lesson = self._decide(context, prices)
        self._draft = context, lesson
        lowest = min(prices)
        prices[lesson.done] = lowest - 1e-9 * max(1.0, abs(lowest))
        return prices

    def _decide(self, context: SchedulingContext, prices: Sequence[float]) -> ShadowSample:
        rng, model = context.rng, self.model
        lowest = min(prices)
        ties = [index for index, price in enumerate(prices) if price == lowest]
        incumbent = ties[int(rng.random() * len(ties))]
        bound = max(lowest, lowest * NEAR)  # prices are seconds, so never below 0
        near = [index for index, price in enumerate(prices) if price <= bound]
        expected = expected_s(context)
        vectors = features(context, expected)
        predicted = {index: model.predict(vectors[index]) for index in near}
        least, targets = min(predicted.values()), [incumbent]
        if least < predicted[incumbent] - MARGIN:
            alike = [index for index in near if predicted[index] <= least + MARGIN]
            best = min([prices[index] for index in alike])
            targets = [index for index in alike if prices[index] == best]
        explore = self._explore(context) if len(near) > 1 else 0.0
        thrown = rng.random()
        done, arm, propensity = incumbent, "idle", 1.0
        state = self.guard.state(context.now)
        if state is GuardState.LIVE and not dark(context):
            arm = "control"
            if thrown < 1.0 - CONTROL:
                done, arm = targets[int(rng.random() * len(targets))], "act"
            if thrown < explore:
                arm = "optimist"
                done = min(
                    near, key=lambda one: predicted[one] - OPTIMISM * model.width(vectors[one])
                )
        elif state is GuardState.SHADOW and (explore or len(near) == 1):
            arm = "shadow"
            if thrown < explore:
                done, arm = near[int(rng.random() * len(near))], "explore"
            propensity = (1.0 - explore) * (done == incumbent) + explore / len(near)
        return ShadowSample(
            done, incumbent, targets, propensity, arm, vectors[done], predicted, expected
        )

    def _explore(self, context: SchedulingContext) -> float:
        """Return the share of such requests on which an alternative is tried."""
        if context.request.features.priority or utilisation(context) > BUSY:
            return 0.0
        return self._settings.explore

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Tell ``learned-N`` where the policy decided, ``explore`` for a trial, else as ``auto``.

        A candidate that another rule put first (a ramp's turn, a wish, a lease) teaches nothing.
        """
        draft, self._draft = self._draft, None
        self._noted = None
        said = self._incumbent.picked(context, index)
        if draft is None or draft[0] is not context or draft[1].done != index:
            return said
        lesson = self._noted = draft[1]
        self._decided += 1
        self._explored += lesson.arm in TRIALS
        if lesson.arm == "idle":
            self.guard.trip("dark", context.now)  # if it is live: only the dark makes it idle then
        if lesson.arm != "act":
            return "explore" if lesson.arm in TRIALS else said
        whole = sum(context.strength) * context.slots / len(context.candidates)
        shares = zip(context.candidates, context.strength, strict=True)
        self.guard.picked(
            context.candidates[index].key,
            ((candidate.key, strength / whole) for candidate, strength in shares),
            context.now,
        )
        return f"learned-{self.guard.version}"

    def charged(self, ticket: Ticket) -> None:
        """Keep what was decided until the ticket settles."""
        lesson, self._noted = self._noted, None
        if lesson is None:
            return
        if len(self._open) >= MOST_OPEN:
            del self._open[next(iter(self._open))]
        self._open[ticket.id] = lesson

    def settled(self, ticket: Ticket, outcome: Outcome, now: float) -> None:
        """Learn from a request that ended; a failed one counts for the guard only."""
        lesson = self._open.pop(ticket.id, None)
        if lesson is None or outcome not in ENDINGS:
            return
        cost = None
        if outcome is Outcome.DONE:
            cost = min((now - ticket.at) / lesson.expected, MOST_COST)
            self.model.learn(lesson.x, cost)
        state = self.guard.state(now)
        if state is GuardState.LIVE and lesson.arm in LIVE_ARMS:
            self.guard.ended(cost, now, control=lesson.arm == "control")
        elif state is GuardState.SHADOW and cost is not None and lesson.arm in SHADOW_ARMS:
            self._judge(lesson, cost, now)

    def _judge(self, lesson: ShadowSample, cost: float, now: float) -> None:
        self.value.add(
            cost=cost,
            propensity=lesson.propensity,
            done=lesson.done,
            incumbent=lesson.incumbent,
            targets=lesson.targets,
            predicted=lesson.predicted,
        )
        better = self.value.judge(self._settings.min_decisions)
        if better is not None:
            if better:
                self.guard.proven(now)
            self.value.clear()

    def parts(self, context: SchedulingContext, index: int) -> Mapping[str, float]:
        """Return the parts of the price by ``auto``."""
        return self._incumbent.parts(context, index)

    def describe(self, now: float) -> Mapping[str, object]:
        """Return guard, value and weights."""
        return {
            "policy": "learned",
            **self.guard.describe(now),
            "decided": self._decided,
            "explored": self._explored,
            "open": len(self._open),
            "samples": self.model.samples,
            "weights": dict(zip(NAMES, self.model.weights, strict=True)),
            "value": {
                "decisions": self.value.count,
                "needed": self._settings.min_decisions,
                "evidence": self.value.evidence,
                "mean": self.value.mean,
                "upper": self.value.upper,
            },
        }
