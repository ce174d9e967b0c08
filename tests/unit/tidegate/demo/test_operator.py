"""The operator of the demo."""

from __future__ import annotations

import pytest

from tidegate.demo.operator import ChangeError, _everywhere, with_policy
from tidegate_api.admin.v1 import admin_pb2 as api

FLEET = {"pools": [{"name": "llm", "routing": {"policy": "a", "body": "peek"}}, {"name": "vision"}]}


def test_only_the_named_pools_policy_changes() -> None:
    """Only the policy changes, in a copy of the fleet."""
    changed = with_policy(FLEET, "llm", "round-robin")
    assert changed["pools"][0]["routing"] == {"policy": "round-robin", "body": "peek"}
    assert changed["pools"][1] == {"name": "vision"}
    assert FLEET["pools"][0]["routing"]["policy"] == "a"


def test_an_unknown_pool_is_an_error() -> None:
    """The error names the unknown pool."""
    with pytest.raises(ChangeError, match="'lm'"):
        with_policy(FLEET, "lm", "round-robin")


def test_a_change_must_reach_every_client() -> None:
    """A rejected or unacknowledged change is an error with the client's message."""
    assert _everywhere(api.ChangeResult(clients=2, acked=2)).acked == 2
    with pytest.raises(ChangeError, match="1 of 2 clients"):
        _everywhere(api.ChangeResult(clients=2, acked=1))
    problem = api.ClientProblem(client="envoy-1", state="NACKED", type="CDS", message="bad")
    with pytest.raises(ChangeError, match="envoy-1 NACKED CDS: bad"):
        _everywhere(api.ChangeResult(clients=2, acked=1, problems=[problem]))
