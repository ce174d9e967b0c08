"""learned: a contextual bandit within the limits of its guard."""

from __future__ import annotations

import json
import random
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.routing.learning.guard import CONTROL, LEAST_CONTROL, GuardState
from ext_proc.routing.policies.auto import Auto
from ext_proc.routing.policies.learned import MOST_OPEN, NEAR, Learned
from ext_proc.routing.values.pool import EndpointKey, Pool
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.settings import LearnedSettings
from ext_proc.routing.values.ticket import Outcome, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.candidates import SchedulingContext

SLOW = 1
"""The candidate whose queue makes requests slower, which no price shows."""


def made(least: int = 1000, explore: float = 0.02) -> Learned:
    """Return a policy with these settings."""
    policy = Learned()
    policy.configure(Pool("llm", learned=LearnedSettings(least, explore)))
    return policy


def with_readings(context: SchedulingContext) -> SchedulingContext:
    """Give each replica a fresh reading of its queue time."""
    for index, candidate in enumerate(context.candidates):
        queue = 0.04 if index == SLOW else 0.0
        candidate.replica.observe([Reading(at=context.now, queue_s=queue)])
    return context


def run(
    policy: Learned,
    context: Callable[..., SchedulingContext],
    requests: int,
    *,
    start: float = 0.0,
    seed: int = 1,
    cost: Callable[[int, str], float | None] | None = None,
    **changes: Any,
) -> list[tuple[int, str]]:
    """Decide and end requests one after another; return the candidate and reason of each."""
    rng = random.Random(seed)
    found = []
    shown = with_readings(context(3, rng=rng, now=start, **changes))
    for number in range(requests):
        now = start + number * 1e-3
        if number % 500 == 0:
            shown = with_readings(shown.changed(now=now))
        shown = shown.changed(now=now)
        prices = policy.prices(shown)
        done = min(range(3), key=prices.__getitem__)
        reason = policy.picked(shown, done)
        ticket = Ticket(number, shown.candidates[done].key, "llm", 1.0, now)
        policy.charged(ticket)
        seconds = 0.02 * (3.0 if done == SLOW else 1.0) if cost is None else cost(done, reason)
        if seconds is None:
            policy.settled(ticket, Outcome.ABORTED, now)
        else:
            policy.settled(ticket, Outcome.DONE, now + seconds * rng.uniform(0.9, 1.1))
        found.append((done, reason))
    return found


def trained(context: Callable[..., SchedulingContext]) -> Learned:
    """Return a live policy that has learned the slow replica."""
    policy = made()
    run(policy, context, 500)
    policy.guard.proven(1.0)
    return policy


def share(found: list[tuple[int, str]], candidate: int) -> float:
    """Return a candidate's share of the requests."""
    return sum(done == candidate for done, _ in found) / len(found)


def test_what_prices_do_not_show_is_learned_proven_and_used(
    context: Callable[..., SchedulingContext],
) -> None:
    """Once live, the slow replica gets only its part of the control share and the trials."""
    policy = made()
    run(policy, context, 10_000)
    assert policy.guard.version == 1
    found = run(policy, context, 4000, start=30.0)
    assert policy.guard.state(40.0) is GuardState.LIVE
    assert share(found, SLOW) < CONTROL / 3 + 0.02
    assert share(found, 0) == pytest.approx(0.5, abs=0.05)  # equal ones stay equal
    assert {reason for _, reason in found} <= {"learned-1", "least", "explore"}
    assert any(reason == "learned-1" for _, reason in found)
    control = sum(reason == "least" for _, reason in found) / len(found)
    assert control == pytest.approx(CONTROL, abs=0.02)


def test_without_trials_it_never_acts(context: Callable[..., SchedulingContext]) -> None:
    """Without exploration there is no evidence, so it stays in shadow mode."""
    policy = made(explore=0.0)
    found = run(policy, context, 5000)
    assert policy.guard.version == 0
    assert {reason for _, reason in found} == {"least"}


def test_it_is_tripped_when_it_turns_out_slower(context: Callable[..., SchedulingContext]) -> None:
    """The incumbent then decides for ten minutes, and until a new proof."""
    policy = trained(context)

    number = count()

    def worse(done: int, reason: str) -> float:
        if reason.startswith("learned") and next(number) % 30 == 0:
            return 0.2
        return 0.06 if done == SLOW else 0.02

    found = run(policy, context, 40 * LEAST_CONTROL, start=10.0, cost=worse)
    assert policy.guard.trips == {"slower": 1}
    assert policy.guard.state(20.0) is GuardState.TRIPPED
    assert {reason for _, reason in found[-500:]} == {"least"}


def test_it_is_tripped_by_failures(context: Callable[..., SchedulingContext]) -> None:
    """Failures are no samples of the model, but trip the guard."""
    policy = trained(context)
    samples = policy.model.samples

    number = count()

    def failing(done: int, reason: str) -> float | None:
        if reason.startswith("learned") and next(number) % 30 == 0:
            return None
        return 0.06 if done == SLOW else 0.02

    found = run(policy, context, 40 * LEAST_CONTROL, start=10.0, cost=failing)
    assert policy.guard.trips == {"failing": 1}
    acted = sum(reason.startswith("learned") for _, reason in found)
    assert policy.model.samples - samples == len(found) - (acted + 29) // 30


def test_it_is_tripped_in_the_dark(context: Callable[..., SchedulingContext]) -> None:
    """It is tripped when the readings are stale."""
    policy = trained(context)
    assert policy.guard.state(10.0) is GuardState.LIVE
    shown = with_readings(context(3, rng=random.Random(1))).changed(now=100.0)
    prices = policy.prices(shown)
    done = min(range(3), key=prices.__getitem__)
    assert policy.picked(shown, done) == "least"
    assert policy.guard.trips == {"dark": 1}


def busy(context: Callable[..., SchedulingContext]) -> SchedulingContext:
    """Return the context of a fleet above 80 % utilisation, with equal candidates."""
    return context(3, pending=[9.0] * 3)


@pytest.mark.parametrize("reason", ["busy", "priority"])
def test_nothing_is_tried_when_busy_or_urgent(
    context: Callable[..., SchedulingContext], reason: str
) -> None:
    """There are no trials above 80 % utilisation or for requests with a priority."""
    policy, rng = made(), random.Random(3)
    shown = busy(context) if reason == "busy" else context(3)
    if reason == "priority":
        request = Request("llm", "stable", "http", Features(Form.GENERATE, priority=1))
        shown = shown.changed(request=request)
    for _ in range(2000):
        prices = policy.prices(shown.changed(rng=rng))
        assert policy.picked(shown, min(range(3), key=prices.__getitem__)) == "least"
    assert policy.describe(0.0)["explored"] == 0


@settings(max_examples=60)
@given(
    loads=st.lists(st.tuples(st.floats(0, 20), st.floats(0.2, 8)), min_size=1, max_size=8),
    weights=st.lists(st.floats(-10, 10), min_size=9, max_size=9),
    live=st.booleans(),
    prompted=st.booleans(),
    seed=st.integers(0, 99),
)
def test_it_never_leaves_what_auto_calls_near(
    context: Callable[..., SchedulingContext],
    loads: list[tuple[float, float]],
    weights: list[float],
    live: bool,
    prompted: bool,
    seed: int,
) -> None:
    """For any model the pick is at most 25 % above the best price."""
    policy = made()
    policy.model.weights = weights
    if live:
        policy.guard.proven(0.0)
    rng = random.Random(seed)
    changes: dict[str, Any] = {"tokens": 640.0, "blocks": 10} if prompted else {}
    shown = context(
        len(loads),
        pending=[pending for pending, _ in loads],
        strength=[strength for _, strength in loads],
        matched=[rng.randrange(11) if prompted else 0 for _ in loads],
        rng=rng,
        **changes,
    )
    fair = Auto().prices(shown)
    for _ in range(50):
        prices = policy.prices(shown)
        done = min(range(len(loads)), key=prices.__getitem__)
        assert fair[done] <= NEAR * min(fair) * (1 + 1e-12)
        policy.picked(shown, done)


@given(st.floats(0, 0.02), st.integers(0, 5))
@settings(max_examples=4)
def test_trials_stay_within_their_share(
    context: Callable[..., SchedulingContext], explore: float, seed: int
) -> None:
    """At most 2 % of the requests are trials, live or not."""
    for live in (False, True):
        policy = made(explore=explore)
        if live:
            policy.guard.proven(0.0)
        found = run(policy, context, 2000, seed=seed)
        assert sum(reason == "explore" for _, reason in found) / 2000 <= explore + 0.01


def test_asking_changes_nothing(context: Callable[..., SchedulingContext]) -> None:
    """Prices that no pick follows leave no state."""
    policy = made()
    shown = context(3)
    before = policy.describe(0.0)
    for _ in range(10):
        policy.prices(context(3))
    prices = policy.prices(context(3))
    assert policy.describe(0.0) == before
    assert policy.picked(shown, min(range(3), key=prices.__getitem__)) == "least"
    assert policy.describe(0.0) == before


def test_a_pick_by_another_rule_is_no_sample(
    context: Callable[..., SchedulingContext],
) -> None:
    """A candidate picked by slow start or a lease is not learned from."""
    policy = made()
    shown = context(3)
    prices = policy.prices(shown)
    policy.picked(shown, max(range(3), key=prices.__getitem__))
    ticket = Ticket(1, shown.candidates[0].key, "llm", 1.0, 0.0)
    policy.charged(ticket)
    policy.settled(ticket, Outcome.DONE, 1.0)
    assert policy.model.samples == 0


def test_open_decisions_are_bounded_and_settle_once(
    context: Callable[..., SchedulingContext],
) -> None:
    """At the bound the oldest decision is dropped; a second settle is ignored."""
    policy = made()
    shown = context(1)
    key = EndpointKey("r0", 1)
    for number in range(MOST_OPEN + 2):
        policy.prices(shown)
        policy.picked(shown, 0)
        policy.charged(Ticket(number, key, "llm", 1.0, 0.0))
    assert policy.describe(0.0)["open"] == MOST_OPEN
    for _ in range(2):
        policy.settled(Ticket(5, key, "llm", 1.0, 0.0), Outcome.DONE, 1.0)
    assert policy.model.samples == 1


def test_its_state_can_be_shown(context: Callable[..., SchedulingContext]) -> None:
    """The state has guard, value and weights, as JSON."""
    policy = made()
    run(policy, context, 50)
    shown = json.loads(json.dumps(policy.describe(1.0)))
    assert (shown["state"], shown["samples"], shown["value"]["needed"]) == ("shadow", 50, 1000)
    assert set(shown["weights"]) >= {"drain", "uncached", "queue"}
