"""Rules for a pool's sources of replicas."""

from __future__ import annotations

from typing import Any

import pytest

from support.fleets import fleet, pool
from xds_server.fleet.rules.fleet import problems

DNS = {"dns": {"name": "t.example", "http": 8000, "grpc": 8001}}
PROVIDER = {"name": "p", "issuer": "i", "jwks": '{"keys": [{"kty": "oct", "k": "AA"}]}'}


def finding(name: str = "llm", *sources: Any, **more: Any) -> dict[str, Any]:
    """Return a pool with these sources and no written replicas."""
    return pool(name, endpoints=[], endpoints_from=list(sources), **more)


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ([finding("llm", DNS, DNS)], "source 'dns t.example:8000/8001' is already used"),
        ([finding("llm", DNS | {"variant": "blue"})], "has no variant 'blue'"),
        (
            [finding("llm", DNS, default=True), finding("safe", DNS, jwt={"any_of": ["p"]})],
            "finds the same replicas and asks for another token",
        ),
        ([finding("llm", DNS), finding("two", {"file": "/f"})], "write `default: true`"),
    ],
)
def test_a_source_that_breaks_a_rule_is_refused(pools: list[Any], message: str) -> None:
    """Before anything is found: what sources may find counts as replicas."""
    made = fleet(*pools, listener={"jwt": [PROVIDER]})
    assert any(message in each.message for each in problems(made))
