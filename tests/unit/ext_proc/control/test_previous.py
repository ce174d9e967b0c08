"""Pools of control servers of earlier releases: today's pickers take them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ext_proc.control.pools import pool_of
from support.record_store import TEXT
from tidegate_api.fleet.v1 import pool_pb2
from xds_server.fleet.load import load_text

RECORDED = sorted((Path(__file__).parents[2] / "fixtures").glob("pools-*.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_pools_of_an_earlier_release_are_taken(path) -> None:
    """With their replicas and variants; what that release had not is off."""
    recorded = json.loads(path.read_text())
    for wanted in load_text(TEXT).pools:
        found = pool_of(pool_pb2.Pool.FromString(bytes.fromhex(recorded[wanted.name])))
        assert found.models == frozenset(wanted.match.models)
        assert [(each.name, each.weight) for each in found.variants] == [
            (each.name, each.weight) for each in wanted.variants
        ]
        assert [
            (each.key.id, each.variant, each.zone, each.draining) for each in found.endpoints
        ] == [
            (each.id, each.variant or "stable", each.zone, each.draining)
            for each in wanted.endpoints
        ]
        assert (found.seed, found.canary) == (7, None)
        assert (found.limit, found.hold_s) == ("none", 0.0)
