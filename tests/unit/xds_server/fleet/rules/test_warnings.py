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
