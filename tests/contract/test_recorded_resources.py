"""A fleet that uses nothing of the edge gets the resources that it got before there was one.

A difference here is a change for every operator: of what Envoys are sent after an upgrade of the
control server, and with the listener it drains all their connections. If it is meant, write the
digests anew with the command that the failure names, and say so in the change log.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.record_resources import COMMAND, digests, fleets
from xds_server.fleet.model.fleet import Fleet, PoolSpec
from xds_server.fleet.model.listener import ListenerSpec

FILE = Path(__file__).parent / "fixtures" / "resources-without-edge.json"
RECORDED = json.loads(FILE.read_text())
FLEETS = fleets()
EDGE = {
    ListenerSpec: (
        *("http3", "pools", "hosts", "further", "proxy_protocol", "connections", "jwt", "cors"),
        *("compression", "rate_limit", "http_filters", "patch"),
    ),
    PoolSpec: ("jwt", "rate_limit", "connections", "http_filters", "cluster_patch"),
}
"""Fields of the edge."""


@pytest.mark.parametrize("name", FLEETS)
def test_a_fleet_without_the_edge_has_the_recorded_resources(name: str) -> None:
    """Byte by byte, by a digest of each resource."""
    found, known = digests(FLEETS[name]), RECORDED[name]
    changed = sorted(key for key in found.keys() | known.keys() if found.get(key) != known.get(key))
    assert not changed, f"changed: {', '.join(changed)}; if this is meant: {COMMAND}"


def test_the_recording_has_these_fleets() -> None:
    """None is left out, and none is left over."""
    assert RECORDED.keys() == FLEETS.keys()


@pytest.mark.parametrize("name", FLEETS)
def test_the_recorded_fleets_use_nothing_of_the_edge(name: str) -> None:
    """Otherwise a change of the edge would be recorded as one of theirs."""
    fleet = FLEETS[name]
    for spec in (fleet.listener, *fleet.pools):
        assert spec.model_fields_set.isdisjoint(EDGE[type(spec)])


def test_digests_do_not_depend_on_the_order_of_fields() -> None:
    """Digests depend on what a fleet says alone, so the recording is equal on every machine."""
    turned = dict(reversed(FLEETS["broad"].model_dump(mode="json", exclude_unset=True).items()))
    assert digests(Fleet.model_validate(turned)) == RECORDED["broad"]
