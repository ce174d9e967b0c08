"""What a rollout does next, and after a restart at any point."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.applications.canary.judgement import Judgement, Unproven
from xds_server.applications.canary.plan import (
    CanaryPlan,
    CanaryPlanError,
    Undecided,
    default_plan,
    sound,
)
from xds_server.applications.canary.rollout import (
    ActionError,
    CanaryGuard,
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

PLAN = CanaryPlan((5.0, 50.0, 100.0), 600.0, 50, undecided_after_s=3_600.0)
GOOD = Judgement(worse=False, log_worse=-1.0, blames="failures", missing=())
UNPROVEN = GOOD._replace(missing=[Unproven("failures", "60% of the evidence", 7)])
WORSE = Judgement(worse=True, log_worse=5.0, blames="failures", missing=())
LAST = RolloutState(RolloutPhase.RUNNING, 1, 1_000.0, 60)


def view(percent: float | None, **more: object) -> RolloutView:
    """Return a view long after the step began, with many sessions."""
    told = {"now_s": 2_000.0, "judgement": GOOD, "begun": 500, **more}
    return RolloutView(percent=percent, **told)  # type: ignore[arg-type]


def test_a_good_canary_goes_from_step_to_step_to_the_whole() -> None:
    """Each step after its time and sessions, and its reason has the numbers."""
    state, now, shares = begun(0.0), 0.0, []
    while not state.phase.ended:
        sessions = int(now)
        found = following(state, PLAN, view(percent_of(state, PLAN), now_s=now, begun=sessions))
        if found is not None:
            state = applied(state, found, now, sessions)
            shares.append((now, percent_of(state, PLAN)))
        now += 10.0
    assert shares == [(0.0, 5.0), (600.0, 50.0), (1_200.0, 100.0)]
    assert state.phase is RolloutPhase.PROMOTED
    assert "600 s and 600 sessions" in state.reason


def test_a_step_needs_its_time_its_sessions_and_its_pickers() -> None:
    """What is missing is said, and while anything is, no step comes."""
    state = RolloutState(RolloutPhase.RUNNING, 0, 1_900.0, 480)
    seen = view(5.0, missing=["p2"], guards=[CanaryGuard(ends=False, why="1 of 3 loads refused")])
    assert following(state, PLAN, seen) is None
    assert waiting_for(state, PLAN, seen) == [
        "1 of 3 loads refused (holds the step)",
        "picker p2 is not heard",
        "500 s of the step's least time of 600 s",
        "30 of 50 sessions of the canary",
    ]


def test_the_whole_needs_a_good_judgement_and_a_step_on_the_way_does_not() -> None:
    """The evidence goes on over steps."""
    on_the_way = LAST._replace(step=0)
    assert following(on_the_way, PLAN, view(5.0, judgement=UNPROVEN)) is not None
    assert following(LAST, PLAN, view(50.0, judgement=UNPROVEN)) is None
    said = waiting_for(LAST, PLAN, view(50.0, judgement=UNPROVEN))
    assert said == ["failures: 60% of the evidence, about 7 min"]


@pytest.mark.parametrize("phase", [RolloutPhase.RUNNING, RolloutPhase.PAUSED])
def test_a_worse_canary_is_rolled_back_also_from_a_pause(phase: RolloutPhase) -> None:
    """To no share at all, with the evidence as its reason."""
    state = LAST._replace(phase=phase)
    found = following(state, PLAN, view(50.0, judgement=WORSE))
    assert found is not None
    assert found.phase is RolloutPhase.ROLLED_BACK
    assert "worse: failures; the evidence of all checks is 148" in found.reason
    assert percent_of(applied(state, found, 2_000.0, 500), PLAN) == 0.0


def test_a_guard_ends_before_any_evidence() -> None:
    """A crash loop needs no statistics."""
    seen = view(50.0, guards=[CanaryGuard(ends=True, why="r3 died 3 times in 60 s")])
    found = following(LAST, PLAN, seen)
    assert found == Transition(RolloutPhase.ROLLED_BACK, 1, "r3 died 3 times in 60 s")


@pytest.mark.parametrize("percent", [20.0, 0.0, None])
def test_weights_changed_by_hand_pause_and_are_not_touched_again(percent: float | None) -> None:
    """Not even where the canary is worse: an operator is at work."""
    found = following(LAST, PLAN, view(percent, judgement=WORSE))
    assert found is not None
    assert (found.phase, found.touched) == (RolloutPhase.PAUSED, True)
    assert ("set by hand" in found.reason) is (percent is not None)
    state = applied(LAST, found, 2_000.0, 500)
    assert following(state, PLAN, view(50.0, judgement=WORSE)) is None
    resumed = applied(state, asked(state, PLAN, "resume", "ann"), 2_100.0, 500)
    assert not resumed.touched
    assert following(resumed, PLAN, view(50.0, judgement=WORSE)) is not None


def test_a_frozen_controller_does_nothing() -> None:
    """In an incident people decide."""
    for judged in (GOOD, WORSE):
        assert following(LAST, PLAN, view(50.0, judgement=judged), frozen=True) is None


@pytest.mark.parametrize(
    ("word", "phase"),
    [
        (Undecided.WAIT, None),
        (Undecided.PAUSE, RolloutPhase.PAUSED),
        (Undecided.ABORT, RolloutPhase.ABORTED),
    ],
)
def test_undecided_after_its_time_it_does_what_the_plan_says(
    word: Undecided, phase: RolloutPhase | None
) -> None:
    """And says what was missing; a step on the way is never undecided."""
    plan = PLAN._replace(undecided=word)
    late = view(50.0, now_s=LAST.since_s + 3_600.0, judgement=UNPROVEN)
    found = following(LAST, plan, late)
    assert (found.phase if found else None) is phase
    if found is not None:
        assert "60% of the evidence" in found.reason
    few = view(5.0, now_s=9e9, begun=60)
    assert following(LAST._replace(step=0), plan, few) is None


def test_too_little_traffic_never_passes() -> None:
    """However long it takes."""
    assert following(LAST, PLAN._replace(undecided=Undecided.WAIT), view(50.0, begun=109)) is None


@given(
    step=st.integers(-1, 1),
    verb=st.sampled_from(["step", "abort", "promote", "pause"]),
    killed=st.sampled_from(["before", "between", "after"]),
)
def test_a_kill_at_any_point_of_a_transition_loses_and_repeats_nothing(
    step: int, verb: str, killed: str
) -> None:
    """Before the intent is stored, before the weights change, or before the state is."""
    state = RolloutState(RolloutPhase.RUNNING, step, 0.0, 0)
    share = percent_of(state, PLAN)
    asks = (
        asked(state, PLAN, verb, "ann") if verb != "step" else following(state, PLAN, view(share))
    )
    assert asks is not None
    wanted = applied(state, asks, 2_000.0, 0)
    stored = state if killed == "before" else state._replace(pending=asks)
    in_force = percent_of(wanted, PLAN) if killed == "after" else share
    read = RolloutState.restored(json.loads(json.dumps(stored.dump())))
    found, again = settled(read, PLAN, in_force, 2_000.0)
    if killed == "before":
        assert (found, again) == (state, None)
    elif again is None:
        assert found == wanted
    else:
        assert killed == "between"
        assert (found, again) == (state, asks)
        assert applied(found, again, 2_000.0, 0) == wanted


def test_after_a_restart_weights_of_neither_step_were_changed_by_hand() -> None:
    """The rollout pauses, and does not finish what was pending."""
    pending = Transition(RolloutPhase.PROMOTED, 2, "100 %")
    for percent in (30.0, None):
        found, again = settled(LAST._replace(pending=pending), PLAN, percent, 2_000.0)
        assert again is None
        assert (found.phase, found.step, found.touched) == (RolloutPhase.PAUSED, 1, True)


def test_what_cannot_be_done_is_refused_with_its_reason() -> None:
    """In the operator's words."""
    ended = LAST._replace(phase=RolloutPhase.ABORTED)
    under_way = LAST._replace(pending=Transition(RolloutPhase.PROMOTED, 2, "x"))
    for state, verb, why in (
        (ended, "promote", "has ended"),
        (under_way, "abort", "under way"),
        (LAST, "resume", "runs"),
        (LAST, "explode", "not an action"),
    ):
        with pytest.raises(ActionError, match=why):
            asked(state, PLAN, verb, "ann")


def test_nothing_comes_after_the_end_or_while_a_step_is_under_way() -> None:
    """One transition at a time."""
    pending = LAST._replace(pending=Transition(RolloutPhase.PROMOTED, 2, "x"))
    for state in (pending, LAST._replace(phase=RolloutPhase.PROMOTED)):
        assert following(state, PLAN, view(50.0, judgement=WORSE)) is None


def test_defaults_follow_the_traffic() -> None:
    """Where it is not known, it is taken for little."""
    for rate, first, least_s in ((None, 20.0, 3_600.0), (1.0, 20.0, 3_600.0), (20.0, 5.0, 600.0)):
        plan = sound(default_plan(rate))
        assert (plan.steps[0], plan.least_s) == (first, least_s)
    assert sound(default_plan(200.0)).steps == (1.0, 10.0, 50.0, 100.0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"steps": (100.0,)}, "2 to 20"),
        ({"steps": (5.0, 5.0, 100.0)}, "rise"),
        ({"steps": (5.0, 50.0)}, "rise"),
        ({"steps": (0.0, 100.0)}, "rise"),
        ({"steps": tuple(float(n) for n in range(80, 101))}, "2 to 20"),
        ({"least_s": 0.0}, "least_s"),
        ({"least_sessions": 0}, "nothing is known"),
        ({"undecided_after_s": 60.0}, "undecided_after_s"),
        ({"budget": 1.0}, "budget"),
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused(change: dict[str, object], why: str) -> None:
    """With the field and what would be right."""
    with pytest.raises(CanaryPlanError, match=why):
        sound(PLAN._replace(**change))  # type: ignore[arg-type]
