"""learned: corrects ``auto`` by the observed cost of its decisions (a contextual bandit).

Formula: among the candidates whose price by ``auto`` is at most 25 % above the best one, the
candidate with the lowest predicted ``cost = seconds / expected``, if it beats the pick of ``auto``
by 0.05. The prediction is linear in nine features of the candidate (``features``: a constant,
drain, uncached prefill, pending, slowness, KV cache, ramp, age and queue of its readings) and is
learned from each finished request (``model``). ``expected`` is the time that the pool's usual
replica needs for a request of this size when idle and with an empty cache, so that long prompts do
not dominate.

It starts in shadow mode: ``auto`` decides, and on a share ``explore`` of the requests a random
candidate of the same set is tried, with known probability. From these the value of the policy is
estimated off-policy (``value``). Once it is better with 95 % confidence over ``min_decisions``, it
decides, within the limits of ``guard``; it then explores the candidate that LinUCB ranks first.

Inputs: those of ``auto``, and the duration of each request. Defaults: 10,000 decisions, 1 %
explored.
Use it for: fleets whose replicas differ in ways that no price shows, under steady traffic.
Not for: small or quiet pools (it never leaves shadow mode, and then is ``auto``); the first hours.

Guarantees:

* It never takes a candidate above 125 % of the best price by ``auto``.
* It explores on at most 2 % of the requests, and never above 80 % utilisation or on requests with a
  priority.
* It decides only while ``guard`` is live; ``auto`` decides the control share, and all requests
  after a trip.
* Memory is bounded, and reasons name the model's version: ``learned-3``.

A pick changes the state for the next one, which a bandit does not model, and samples of a busy hour
mislead in a quiet one; hence the small set, the forgetting and the guard.
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

    from ext_proc.routing.state.candidates import SchedulingContext
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.ticket import Ticket

NEAR: Final = 1.25
MARGIN: Final = 0.05
"""Predictions that differ by less, as a share of ``expected``, count as equal and are left to
``auto``: otherwise one of several equal replicas would get all requests."""
BUSY: Final = 0.8
MOST_COST: Final = 10.0
OPTIMISM: Final = 1.0
"""LinUCB's alpha."""
MOST_OPEN: Final = 50_000
"""Maximum number of decisions kept until they end."""
SHADOW_ARMS: Final = ("shadow", "explore")
LIVE_ARMS: Final = ("act", "control", "optimist")
TRIALS: Final = ("explore", "optimist")
ENDINGS: Final = (Outcome.DONE, Outcome.ABORTED)


class ShadowSample(NamedTuple):
    """One decision that can be learned from; indices are those of its context's candidates."""

    done: int
    incumbent: int
    targets: Sequence[int]
    propensity: float
    arm: str
    """``shadow`` and ``explore`` are used to evaluate the policy; ``act``, ``control`` and
    ``optimist`` occur in the live state; ``idle`` ones only train the model."""
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
        """The sample of the latest ``prices``, for ``picked``; no price depends on it."""
        self._noted: ShadowSample | None = None
        self._open: dict[int, ShadowSample] = {}
        self._explored = self._decided = 0

    def configure(self, pool: Pool) -> None:
        """Take the pool's ``learned`` settings; the model is kept."""
        self._settings = pool.learned

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return the prices of ``auto``, with the chosen candidate's lowered to the lowest."""
        prices = list(self._incumbent.prices(context))
        sample = self._decide(context, prices)
        self._draft = context, sample
        lowest = min(prices)
        prices[sample.done] = lowest - 1e-9 * max(1.0, abs(lowest))
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
        draw = rng.random()
        done, arm, propensity = incumbent, "idle", 1.0
        state = self.guard.state(context.now)
        if state is GuardState.LIVE and not dark(context):
            arm = "control"
            if draw < 1.0 - CONTROL:
                done, arm = targets[int(rng.random() * len(targets))], "act"
            if draw < explore:
                arm = "optimist"
                done = min(
                    near, key=lambda one: predicted[one] - OPTIMISM * model.width(vectors[one])
                )
        elif state is GuardState.SHADOW and (explore or len(near) == 1):
            arm = "shadow"
            if draw < explore:
                done, arm = near[int(rng.random() * len(near))], "explore"
            propensity = (1.0 - explore) * (done == incumbent) + explore / len(near)
        return ShadowSample(
            done, incumbent, targets, propensity, arm, vectors[done], predicted, expected
        )

    def _explore(self, context: SchedulingContext) -> float:
        """Return the share of requests like this one on which an alternative is tried."""
        if context.request.features.priority or utilisation(context) > BUSY:
            return 0.0
        return self._settings.explore

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Return ``learned-N`` if the policy decided, ``explore`` for a trial, else as ``auto``.

        A candidate that another rule put first (slow start, a preference, a lease) is no sample.
        """
        draft, self._draft = self._draft, None
        self._noted = None
        label = self._incumbent.picked(context, index)
        if draft is None or draft[0] is not context or draft[1].done != index:
            return label
        sample = self._noted = draft[1]
        self._decided += 1
        self._explored += sample.arm in TRIALS
        if sample.arm == "idle":
            self.guard.trip("dark", context.now)  # has effect if live, where only dark gives idle
        if sample.arm != "act":
            return "explore" if sample.arm in TRIALS else label
        whole = sum(context.strength) * context.slots / len(context.candidates)
        shares = zip(context.candidates, context.strength, strict=True)
        self.guard.picked(
            context.candidates[index].key,
            ((candidate.key, strength / whole) for candidate, strength in shares),
            context.now,
        )
        return f"learned-{self.guard.version}"

    def charged(self, ticket: Ticket) -> None:
        """Keep the sample until the ticket settles."""
        sample, self._noted = self._noted, None
        if sample is None:
            return
        if len(self._open) >= MOST_OPEN:
            del self._open[next(iter(self._open))]
        self._open[ticket.id] = sample

    def settled(self, ticket: Ticket, outcome: Outcome, now: float) -> None:
        """Learn from a request that ended; a failed one counts only for the guard."""
        sample = self._open.pop(ticket.id, None)
        if sample is None or outcome not in ENDINGS:
            return
        cost = None
        if outcome is Outcome.DONE:
            cost = min((now - ticket.at) / sample.expected, MOST_COST)
            self.model.learn(sample.x, cost)
        state = self.guard.state(now)
        if state is GuardState.LIVE and sample.arm in LIVE_ARMS:
            self.guard.ended(cost, now, control=sample.arm == "control")
        elif state is GuardState.SHADOW and cost is not None and sample.arm in SHADOW_ARMS:
            self._judge(sample, cost, now)

    def _judge(self, sample: ShadowSample, cost: float, now: float) -> None:
        self.value.add(
            cost=cost,
            propensity=sample.propensity,
            done=sample.done,
            incumbent=sample.incumbent,
            targets=sample.targets,
            predicted=sample.predicted,
        )
        better = self.value.judge(self._settings.min_decisions)
        if better is not None:
            if better:
                self.guard.proven(now)
            self.value.clear()

    def parts(self, context: SchedulingContext, index: int) -> Mapping[str, float]:
        """Return the terms of the price by ``auto``."""
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
