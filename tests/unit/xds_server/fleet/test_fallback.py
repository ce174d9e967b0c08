"""The fleet to restore after a rejection."""

from __future__ import annotations

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.fallback import fallback_fleet
from xds_server.fleet.model.fleet import Fleet

BASE = pool(default=True)
CANARY = endpoint(3, variant="canary")


def ids(found: Fleet) -> list[str]:
    """Return the first pool's endpoints."""
    return [one.id for one in found.pools[0].endpoints]


def test_settings_are_restored() -> None:
    """Weights, routes and limits are those that clients accepted."""
    refused = fleet(pool(default=True, routing={"fallbacks": 7}), pool("more"))
    assert fallback_fleet(fleet(BASE), refused, membership=True) == fleet(BASE)


def test_a_drain_stays() -> None:
    """Rule 2, also if the membership is restored."""
    drained = [endpoint(1, draining=True), endpoint(2), CANARY]
    refused = fleet(pool(default=True, endpoints=drained, routing={"fallbacks": 7}))
    for membership in (True, False):
        back = fallback_fleet(fleet(BASE), refused, membership=membership)
        assert [one.draining for one in back.pools[0].endpoints] == [True, False, False]
        assert back.pools[0].routing.fallbacks == 2


def test_membership_is_kept() -> None:
    """Rule 2: unless endpoints were rejected."""
    moved = [endpoint(2), CANARY, endpoint(4)]
    refused = fleet(pool(default=True, endpoints=moved, routing={"fallbacks": 7}))
    assert ids(fallback_fleet(fleet(BASE), refused, membership=True)) == ["r2", "r3", "r4"]
    assert ids(fallback_fleet(fleet(BASE), refused, membership=False)) == ["r1", "r2", "r3"]


def test_a_restored_variant_keeps_its_replicas() -> None:
    """Replicas of a variant that is removed are removed with it."""
    variants = [{"name": "stable"}, {"name": "next"}]
    endpoints = [endpoint(1), endpoint(2), endpoint(5, variant="next")]
    refused = fleet(pool(default=True, variants=variants, endpoints=endpoints))
    assert ids(fallback_fleet(fleet(BASE), refused, membership=True)) == ["r1", "r2", "r3"]


def test_a_replica_that_changed_its_variant_is_restored_to_it() -> None:
    """If the new variant is removed by the fallback."""
    variants = [{"name": "stable"}, {"name": "next"}]
    endpoints = [endpoint(1), endpoint(2, variant="next", draining=True)]
    refused = fleet(pool(default=True, variants=variants, endpoints=endpoints))
    back = fallback_fleet(fleet(BASE), refused, membership=True)
    assert ids(back) == ["r1", "r2", "r3"]
    assert [(e.draining, back.pools[0].variant_of(e)) for e in back.pools[0].endpoints] == [
        (False, "stable"),
        (True, "stable"),
        (False, "canary"),
    ]


def test_membership_that_breaks_a_rule_is_not_kept() -> None:
    """Rule 3: without its canary replica the accepted weights would break a rule."""
    variants = [{"name": "stable"}, {"name": "canary", "weight": 0}]
    refused = fleet(pool(default=True, variants=variants, endpoints=[endpoint(1), endpoint(2)]))
    assert fallback_fleet(fleet(BASE), refused, membership=True) == fleet(BASE)
