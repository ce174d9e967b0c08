"""Rules of shadows, zones and TLS."""

from __future__ import annotations

from typing import Any

import pytest

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.rules.fleet import problems

SPLIT = [{"name": "stable", "weight": 1}, {"name": "canary", "weight": 0}]


def found(*pools: dict[str, Any]) -> list[tuple[str, str]]:
    """Return place and message of each broken rule."""
    return [(problem.path, problem.message) for problem in problems(fleet(*pools))]


def shadowed(**shadow: Any) -> dict[str, Any]:
    """Return the usual pool with a shadow."""
    return pool(variants=SPLIT, shadow=shadow)


@pytest.mark.parametrize(
    ("given", "path", "words"),
    [
        (pool(shadow={"variant": "canary"}), "shadow.variant", "set its weight to 0"),
        (shadowed(variant="canry"), "shadow.variant", "it has stable, canary"),
        (shadowed(variant="v", pool="other"), "shadow.pool", "there are llm"),
        (
            pool(variants=SPLIT, endpoints=[endpoint(1)], shadow={"variant": "canary"}),
            "shadow.variant",
            "copies of HTTP requests would be lost",
        ),
        (pool(zones=["a", "b", "a"]), "zones[2]", "already"),
        (pool(upstream_tls={"certificate": "/a.crt"}), "upstream_tls", "write `key:` too"),
        (pool(upstream_tls={"key": "/a.key"}), "upstream_tls", "write `certificate:` too"),
    ],
)
def test_what_cannot_work_is_reported(given: dict[str, Any], path: str, words: str) -> None:
    """The error names the location and the correction."""
    ((where, message),) = found(given)
    assert where == f"pools[0].{path}"
    assert words in message


def test_half_of_a_pair_for_pickers_is_reported() -> None:
    """As for replicas."""
    given = fleet(pickers={"tls": {"certificate": "/a.crt"}})
    ((path, message),) = [(each.path, each.message) for each in problems(given)]
    assert path == "pickers.tls"
    assert "write `key:` too" in message


def test_a_shadow_may_be_in_another_pool() -> None:
    """There its variant may have traffic of its own."""
    other = pool("b", variants=[{"name": "v"}], endpoints=[endpoint(5)])
    assert found(pool(default=True, shadow={"pool": "b", "variant": "v"}), other) == []
