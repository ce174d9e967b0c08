"""The verb ``canary``: what it asks the control server, and how it shows the answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tidegate_api.admin.v1 import admin_pb2 as api

if TYPE_CHECKING:
    from support.command_line import FakeAdmin, Run

REPORT = {
    "rollout": "llm-1",
    "pool": "llm",
    "canary": "v2",
    "stable": "v1",
    "phase": "running",
    "percent": 5.0,
    "reason": "step 1 of 3: 5 %",
    "sessions": {"canary": 9, "stable": 171},
    "failed_sessions": {"canary": 2, "stable": 1},
    "failure_ratio": {"low": 0.5, "high": 1000.0},
    "checks": [{"check": "failures", "worse": 3.25, "not_worse": 0.5, "condition": True}],
    "log": [{"at_s": 1.8e9, "phase": "running", "percent": 5.0, "reason": "step 1 of 3: 5 %"}],
}
TOLD = api.CanaryRollouts(
    rollouts=[
        api.CanaryRollout(
            pool="llm",
            line="canary llm: v2 at 5 %, running; waits for 9 s",
            phase="running",
            transitions=1,
            waits_for=["9 s", "3 of 50 sessions of the canary"],
            report_json=json.dumps(REPORT),
        )
    ],
    frozen="ann: incident",
    freezes=5,
)


def test_a_start_names_variant_plan_and_operator(run: Run, admin: FakeAdmin) -> None:
    """The plan's values are sent as text; the control server knows the fields."""
    ran = run(
        *(
            "canary",
            "start",
            "llm",
            "--to",
            "v2",
            "--plan",
            "steps=1,50,100",
            "--plan",
            "window=1s",
        ),
        *("--author", "ann", "--reason", "v2", "--server", admin.address),
    )
    assert (ran.code, ran.out) == (0, "no rollout runs\n")
    read, asked = admin.requests
    assert (read.pool, asked.pool, asked.variant, asked.seen) == ("llm", "llm", "v2", 0)
    assert dict(asked.plan) == {"steps": "1,50,100", "window": "1s"}
    assert (asked.options.author, asked.options.reason) == ("ann", "v2")


@pytest.mark.parametrize("action", ["pause", "promote", "freeze", "unfreeze"])
def test_an_action_always_tells_what_its_operator_has_seen(
    run: Run, admin: FakeAdmin, action: str
) -> None:
    """By default what it reads first; only a forced one tells nothing."""
    admin.rollouts = TOLD
    of_all = "freeze" in action
    pool = () if of_all else ("llm",)
    run("canary", action, *pool, "--seen", "3", "--server", admin.address)
    run("canary", action, *pool, "--server", admin.address)
    run("canary", action, *pool, "--force", "--server", admin.address)
    first, _, second, forced = admin.requests
    assert (first.action, first.pool, first.seen) == (action, "".join(pool), 3)
    assert (second.action, second.seen) == (action, 5 if of_all else 1)
    assert not second.options.force
    assert not forced.HasField("seen")
    assert forced.options.force


def test_status_shows_what_is_missing(run: Run, admin: FakeAdmin) -> None:
    """The line of ``tidegate status``, then what the next step waits for."""
    admin.rollouts = TOLD
    assert run("canary", "status", "--server", admin.address).out.splitlines() == [
        "all rollouts are frozen by ann: incident  (freezes: 5)",
        "canary llm: v2 at 5 %, running; waits for 9 s  (transitions: 1)",
        "  waits for 9 s",
        "  waits for 3 of 50 sessions of the canary",
    ]
    told = json.loads(run("canary", "status", "-o", "json", "--server", admin.address).out)
    assert told["rollouts"][0]["transitions"] == 1
    assert told["rollouts"][0]["report"] == REPORT


def test_a_report_says_what_was_compared_and_what_it_cost(run: Run, admin: FakeAdmin) -> None:
    """As text with intervals and reasons, or as JSON."""
    admin.rollouts = TOLD
    said = run("canary", "report", "llm", "--server", admin.address).out
    for part in (
        "pool llm: v2 in place of v1: running at 5 %",
        "failed: 2 of the canary (what it cost), 1 of stable",
        "0.5 to 1e+03 times as often (95 %)",
        "3.25",
        "2027-01-15 08:00:00",
    ):
        assert part in said
    ran = run("canary", "report", "llm", "-o", "json", "--server", admin.address)
    assert json.loads(ran.out) == REPORT
    admin.rollouts = api.CanaryRollouts()
    ran = run("canary", "report", "llm", "--server", admin.address)
    assert "pool 'llm' has had no rollout; tidegate canary start llm" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("start", "llm"), "--to VARIANT is needed"),
        (("abort", "llm", "--to", "v2"), "of no other action"),
        (("abort",), "tidegate canary abort POOL"),
        (("freeze", "llm"), "for all pools"),
        (("pause", "llm", "--plan", "a=b"), "--plan is of start"),
        (("start", "llm", "--to", "v2", "--plan", "steps"), "write NAME=VALUE"),
    ],
)
def test_words_that_do_not_belong_together_are_wrong_use(
    run: Run, admin: FakeAdmin, words: tuple[str, ...], said: str
) -> None:
    """Nothing is asked."""
    ran = run("canary", *words, "--server", admin.address)
    assert (ran.code, admin.requests) == (2, [])
    assert said in ran.err
