"""Validation and derived values of scenarios."""

from __future__ import annotations

from typing import Any

import pytest

from bench.simulate.scenario import Scenario, ScenarioError


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"replicas": 0}, "replicas must"),
        ({"slow_replicas": 9}, "more slow"),
        ({"slow_speed": 0.0}, "slow speed"),
        ({"join_at_s": 0.0}, "joining"),
        ({"fail_at_s": -1.0}, "failure"),
        ({"brake_at_s": 0.0}, "brake"),
        ({"brake_s": 0.0}, "braking"),
        ({"brake_speed": 1.5}, "braked"),
        ({"replicas": 1, "brake_at_s": 1.0}, "cannot brake"),
        ({"replicas": 1, "join_at_s": 1.0}, "start empty"),
        ({"replicas": 1, "fail_at_s": 1.0}, "cannot lose"),
        ({"down_s": 0.0}, "time down"),
        ({"telemetry_s": -1.0}, "telemetry"),
        ({"warmup": 1.0}, "warm-up"),
        ({"freeze_at_s": 0.0}, "freeze"),
        ({"freeze_s": 0.0}, "frozen"),
        ({"pickers": 0}, "pickers must"),
        ({"window_s": (5.0, 5.0)}, "window"),
    ],
)
def test_a_setting_out_of_range(settings: dict[str, Any], said: str) -> None:
    """The error names the setting."""
    with pytest.raises(ScenarioError, match=said):
        Scenario(**settings)


def test_the_slow_ones_are_the_last() -> None:
    """Speeds, joiner and victim follow from the settings."""
    scenario = Scenario(replicas=3, slow_replicas=1, slow_speed=0.25, join_at_s=1.0)
    assert [scenario.speed(index) for index in range(3)] == [1.0, 1.0, 0.25]
    assert (scenario.joiner, scenario.victim) == (0, None)
    assert Scenario(fail_at_s=3.0).victim == 1


def test_what_is_measured() -> None:
    """The warm-up, or all jobs outside the window, are not measured."""
    times = [0.0, 1.0, 2.0, 3.0]
    assert Scenario(warmup=0.5).measured(times) == slice(2, 4)
    assert Scenario(window_s=(1.0, 3.0)).measured(times) == slice(1, 3)
