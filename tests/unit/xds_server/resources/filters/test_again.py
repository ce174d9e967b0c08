"""Where Envoy takes requests of hung replicas through its filters again."""

from __future__ import annotations

import pytest

from support.fleets import fleet, pool
from xds_server.resources.filters.again import hung_requests

HOSTS = {"hosts": [{"names": ["a.example"], "pools": ["llm"]}]}


@pytest.mark.parametrize(
    ("listener", "routing", "expected"),
    [
        ({}, {}, "move"),
        ({}, {"hung_requests": "wait"}, "wait"),
        (HOSTS, {}, "wait"),
        (HOSTS, {"hung_requests": "refuse"}, "refuse"),
    ],
)
def test_hosts_that_tell_pools_apart_are_not_moved(listener, routing, expected):
    """The second pass does not know the host."""
    made = fleet(pool(default=True, routing=routing), listener=listener)
    assert hung_requests(made, made.pools[0]) == expected
