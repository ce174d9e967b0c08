"""What is allowed in a fleet and probably not meant."""

from __future__ import annotations

import pytest

from support.fleets import fleet, pool
from xds_server.fleet.rules.warnings import warnings


@pytest.mark.parametrize(
    ("paths", "health", "warned"),
    [
        (["/v1/completions"], {}, True),
        (["/v1/completions"], {"path": "/health"}, False),
        ([], {}, False),
    ],
)
def test_a_pool_of_engines_without_a_health_path(
    paths: list[str], health: dict[str, str], warned: bool
) -> None:
    """Envoy asks one path of all replicas of a pool, and cannot fall back to another."""
    found = warnings(fleet(pool(match={"models": ["m"], "paths": paths}, health=health)))
    assert len(found) == warned
    assert all("llm" in each and "/health" in each for each in found)


@pytest.mark.parametrize(
    ("routing", "models", "said"),
    [
        ({"first_message": "none"}, ["a", "b"], ["gRPC stream may reach a replica that lacks"]),
        ({"first_message": "none"}, ["a"], []),
        ({"first_message": "auto"}, ["a", "b"], []),
        ({"body": "none"}, ["a"], ["prompts, sequences and adapters are not seen"]),
        ({"peek_bytes": 4096}, ["a"], ["they are sent to one replica, without a retry"]),
        ({"body": "none", "policy": "envoy"}, ["a"], []),
        ({}, ["a", "b"], []),
    ],
)
def test_what_a_setting_gives_up_is_said(
    routing: dict[str, str], models: list[str], said: list[str]
) -> None:
    """A setting that is off by choice is not wrong; its price is told once, where it is written."""
    found = warnings(fleet(pool(match={"models": models}, routing=routing)))
    assert len(found) == len(said)
    assert all(part in text for part, text in zip(said, found, strict=True))
