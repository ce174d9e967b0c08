"""What ``up`` starts, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fleets import fleet, pool
from tidegate.cli.verbs.up import UpOptions, plan_addresses
from tidegate.stack import commands
from tidegate.terminal.errors import CliError

OPTIONS = UpOptions(
    fleet=Path("fleet.yaml"),
    ads="127.0.0.1:1",
    admin="127.0.0.1:2",
    envoy_admin="127.0.0.1:3",
    metrics="127.0.0.1:4",
    picker_metrics="127.0.0.1:5",
    state=None,
    protocol="delta",
)


def test_a_fleet_without_a_gateway_gets_none() -> None:
    """As before."""
    assert plan_addresses(fleet(pool(default=True)), OPTIONS).gateway is None


def test_a_gateway_listens_where_the_fleet_says() -> None:
    """Its ports for operators are the usual ones."""
    made = fleet(pool(default=True), gateway={"http": ["127.0.0.1:6"], "grpc": ["127.0.0.1:7"]})
    found = plan_addresses(made, OPTIONS).gateway
    assert found is not None
    words = commands.gateway(found, OPTIONS.ads, "gateway-1")
    assert words[:5] == ("gateway", "--http", "127.0.0.1:6", "--grpc", "127.0.0.1:7")
    assert "127.0.0.1:18022" in words


def test_several_gateways_are_started_by_hand() -> None:
    """``up`` starts one of each."""
    two = {"http": ["127.0.0.1:6", "127.0.0.1:8"], "grpc": ["127.0.0.1:7"]}
    with pytest.raises(CliError, match="several gateways"):
        plan_addresses(fleet(pool(default=True), gateway=two), OPTIONS)
