"""What a change would do, before it is made."""

from __future__ import annotations

import pytest

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.view import View
from xds_server.snapshots.preview import MAX_NAMES, Preview, preview, shortened
from xds_server.snapshots.stages import plan

BASE = fleet(pool(default=True))


def seen(new: Fleet, old: Fleet = BASE) -> Preview:
    """Return the preview of a change from a settled fleet."""
    settled = plan(None, View(old, {}))
    held = {stage.audience: stage.snapshot for stage in settled}
    stages = plan(View(old, {}), View(new, {}))
    return preview(stages, held["envoy"], held["picker"], old, new)


def edited(**more: object) -> Fleet:
    """Return the fleet with other values of its pool."""
    return fleet(pool(default=True, **more))


@pytest.mark.parametrize(
    ("new", "channels"),
    [
        (BASE, ()),
        (edited(routing={"peek_bytes": 4096}), ("RDS", "POOL")),
        (edited(circuit_breaker={"max_requests": 7}), ("RTDS",)),
        (edited(drop_overload=5), ("EDS",)),
        (edited(endpoints=[endpoint(1), endpoint(3, variant="canary")]), ("EDS", "POOL")),
    ],
)
def test_the_channels_are_those_of_the_stages(new: Fleet, channels: tuple[str, ...]) -> None:
    """An operator learns what would be sent, in the words of the history."""
    assert seen(new).channels == channels


def test_a_changed_listener_drains_connections() -> None:
    """The fields that do it are named; other changes close nothing."""
    new = fleet(pool(default=True), listener={"address": "127.0.0.1:7777"})
    assert seen(new).drains == ("listener.address",)
    assert seen(edited(drop_overload=5)).drains == ()


def test_changed_clusters_warm_and_new_ones_do_not_count() -> None:
    """Only a cluster that is in use has connections to replace."""
    assert seen(edited(connections={"h2_keepalive": "7s"})).warms
    more = fleet(pool(default=True), pool("vision", endpoints=[endpoint(9)]))
    assert seen(more).warms == ()


def test_replicas_that_begin_to_drain_are_named() -> None:
    """Those that drain already are not."""
    once = edited(endpoints=[endpoint(1, draining=True), endpoint(2), endpoint(3)])
    both = edited(endpoints=[endpoint(1, draining=True), endpoint(2, draining=True), endpoint(3)])
    assert seen(both, once).draining == ("r2",)


def test_the_first_fleet_has_nothing_before_it() -> None:
    """All of its types would be sent."""
    found = preview(plan(None, View(BASE, {})), None, None, None, BASE)
    assert {"CDS", "LDS", "POOL"} <= set(found.channels)
    assert (found.drains, found.warms, found.draining) == ((), (), ())


def test_types_that_are_not_served_would_not_be_sent() -> None:
    """A control server that serves clusters only sends no listener."""
    new = fleet(pool(default=True), listener={"address": "127.0.0.1:7777"})
    held = {stage.audience: stage.snapshot for stage in plan(None, View(BASE, {}))}
    envoy = held["envoy"].without(
        [url for url in held["envoy"].type_urls if "Listener" in url or "Route" in url]
    )
    stages = plan(View(BASE, {}), View(new, {}))
    assert preview(stages, envoy, held["picker"], BASE, new).channels == ()


def test_names_are_bounded() -> None:
    """The last line counts the omitted ones."""
    names = [f"r{number}" for number in range(MAX_NAMES + 1)]
    assert len(shortened(names)) == MAX_NAMES
    assert shortened(names)[-1] == "and 2 more"
    assert shortened(names[:-1]) == tuple(names[:-1])
