"""The registry of policies."""

from __future__ import annotations

import random

import pytest

from ext_proc.routing.policies import POLICIES, make_policy


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_each_name_makes_a_policy(name: str) -> None:
    """Every name that a pool may use gives a policy."""
    policy = make_policy(name, random.Random(0), pool="llm")
    assert callable(policy.prices)
    assert callable(policy.picked)


def test_an_unknown_name_is_one_clear_error() -> None:
    """The error names the pool, the unknown name and the valid ones."""
    with pytest.raises(ValueError, match=r"pool 'llm': unknown policy 'magic'.*round-robin"):
        make_policy("magic", random.Random(0), pool="llm")
