"""Where a refusal leads back to."""

from __future__ import annotations

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.fallback import fallen_back
from xds_server.fleet.model.fleet import Fleet

BASE = pool(default=True)
CANARY = endpoint(3, variant="canary")


def ids(found: Fleet) -> list[str]:
    """Return the first pool's endpoints."""
    return [one.id for one in found.pools[0].endpoints]


def test_settings_go_back() -> None:
    """Weights, routes and limits are those that clients accepted."""
    refused = fleet(pool(default=True, routing={"fallbacks": 7}), pool("more"))
    assert fallen_back(fleet(BASE), refused, membership=True) == fleet(BASE)


def test_a_drain_stays() -> None:
    """Law 2, also where membership goes back."""
    drained = [endpoint(1, draining=True), endpoint(2), CANARY]
    refused = fleet(pool(default=True, endpoints=drained, routing={"fallbacks": 7}))
    for membership in (True, False):
        back = fallen_back(fleet(BASE), refused, membership=membership)
        assert [one.draining for one in back.pools[0].endpoints] == [True, False, False]
        assert back.pools[0].routing.fallbacks == 2


def test_who_came_and_went_stays_so() -> None:
    """Law 2: unless the refusal was about endpoints."""
    moved = [endpoint(2), CANARY, endpoint(4)]
    refused = fleet(pool(default=True, endpoints=moved, routing={"fallbacks": 7}))
    assert ids(fallen_back(fleet(BASE), refused, membership=True)) == ["r2", "r3", "r4"]
    assert ids(fallen_back(fleet(BASE), refused, membership=False)) == ["r1", "r2", "r3"]


def test_a_returning_variant_brings_its_replicas() -> None:
    """And replicas of a variant that is no more go with it."""
    variants = [{"name": "stable"}, {"name": "next"}]
    endpoints = [endpoint(1), endpoint(2), endpoint(5, variant="next")]
    refused = fleet(pool(default=True, variants=variants, endpoints=endpoints))
    assert ids(fallen_back(fleet(BASE), refused, membership=True)) == ["r1", "r2", "r3"]


def test_a_replica_that_changed_sides_is_where_it_was() -> None:
    """If the side it changed to is no more."""
    variants = [{"name": "stable"}, {"name": "next"}]
    endpoints = [endpoint(1), endpoint(2, variant="next", draining=True)]
    refused = fleet(pool(default=True, variants=variants, endpoints=endpoints))
    back = fallen_back(fleet(BASE), refused, membership=True)
    assert ids(back) == ["r1", "r2", "r3"]
    assert [(e.draining, back.pools[0].variant_of(e)) for e in back.pools[0].endpoints] == [
        (False, "stable"),
        (True, "stable"),
        (False, "canary"),
    ]


def test_what_breaks_a_rule_does_not_come_back() -> None:
    """Law 3: without its canary replica the accepted weights could not stand."""
    variants = [{"name": "stable"}, {"name": "canary", "weight": 0}]
    refused = fleet(pool(default=True, variants=variants, endpoints=[endpoint(1), endpoint(2)]))
    assert fallen_back(fleet(BASE), refused, membership=True) == fleet(BASE)
