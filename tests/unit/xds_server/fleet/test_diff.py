"""Differences between two fleets as text."""

from __future__ import annotations

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.change import set_draining, set_weights
from xds_server.fleet.diff import MAX_LINES, diff


def test_the_first_fleet_lists_its_pools() -> None:
    """There is no earlier fleet."""
    assert diff(None, fleet()) == ("pool llm added (3 endpoints)",)


def test_a_weight_is_reported_with_both_values() -> None:
    """The old and the new value."""
    after = set_weights(fleet(), "llm", {"canary": 25})
    assert diff(fleet(), after) == ("pool llm: variant canary weight 10 -> 25",)


def test_a_drain_is_reported() -> None:
    """Booleans are written as in the file."""
    after = set_draining(fleet(), "r1", draining=True)
    assert diff(fleet(), after) == ("pool llm: endpoint r1 draining false -> true",)


def test_endpoints_are_added_and_removed() -> None:
    """An added endpoint is listed with address and variant."""
    new = pool(endpoints=[endpoint(1), endpoint(3, variant="canary"), endpoint(4)])
    assert diff(fleet(), fleet({**new, "default": True})) == (
        "pool llm: endpoint r4 added (127.0.0.1:8041, stable)",
        "pool llm: endpoint r2 removed",
    )


def test_pools_are_added_and_removed() -> None:
    """Additions in the order of the file, then removals."""
    assert diff(fleet(pool("a")), fleet(pool("b", endpoints=[endpoint(1)]))) == (
        "pool b added (1 endpoint)",
        "pool a removed",
    )


def test_variants_are_added_and_removed() -> None:
    """In the same way as endpoints."""
    new = pool(default=True, variants=[{"name": "stable", "weight": 90, "model_version": "1"}])
    new["endpoints"] = [endpoint(1), endpoint(2), endpoint(3)]
    assert diff(fleet(), fleet(new)) == (
        "pool llm: variant canary removed",
        "pool llm: endpoint r3 variant canary -> stable",
    )
    assert diff(fleet(new), fleet())[0] == "pool llm: variant canary added (weight 10)"


def test_a_difference_says_what_drains() -> None:
    """An operator learns it before the change, from `diff` and from a dry run."""
    after = fleet(listener={"buffer_bytes": 131_072, "debug_headers": True})
    assert diff(fleet(), after) == (
        "listener debug_headers false -> true",
        "listener buffer_bytes 65536 -> 131072",
        "drains the listener's connections: listener.buffer_bytes",
    )


def test_nested_fields_are_named_by_their_path() -> None:
    """Durations have units; lists show added and removed values."""
    after = fleet(
        pool(
            default=True,
            match={"models": ["llm-model", "new"]},
            slow_start={"window": "1500ms"},
            health={"path": "/ready"},
        ),
        listener={"debug_headers": True},
        pickers={"timeout": "2s", "addresses": []},
    )
    assert diff(fleet(), after) == (
        "listener debug_headers false -> true",
        "pickers addresses -127.0.0.1:18001",
        "pickers timeout 1s -> 2s",
        "pool llm: match.models +new",
        "pool llm: slow_start.window 30s -> 1500ms",
        "pool llm: health.path none -> /ready",
    )


def test_an_order_is_a_difference() -> None:
    """The draw of a variant depends on the order of the variants."""
    ahead = pool(default=True, match={"models": ["a", "b"]})
    behind = pool(default=True, match={"models": ["b", "a"]})
    assert diff(fleet(ahead), fleet(behind)) == ("pool llm: match.models [a, b] -> [b, a]",)
    behind = {**ahead, "variants": ahead["variants"][::-1], "endpoints": ahead["endpoints"][::-1]}
    first = [{**e, "variant": e.get("variant", "stable")} for e in ahead["endpoints"]]
    ahead, behind = {**ahead, "endpoints": first}, {**behind, "endpoints": first[::-1]}
    assert diff(fleet(ahead), fleet(behind)) == (
        "pool llm: variants reordered",
        "pool llm: endpoints reordered",
    )


def test_lines_are_bounded() -> None:
    """A large difference has its first lines and a count of the others."""
    many = pool(default=True, endpoints=[endpoint(n) for n in range(1, MAX_LINES + 10)])
    lines = diff(fleet(pool(default=True, endpoints=[])), fleet(many))
    assert len(lines) == MAX_LINES
    assert lines[-1] == "... and 10 more"


def test_lists_of_mappings_are_compared() -> None:
    """Entries that have no order among themselves are listed as they are."""
    needs = [{"model": "llm-model", "device": device} for device in ("a", "b")]
    old, new = (
        fleet(pool(default=True, match={"models": ["llm-model", "x"]}, model_needs=made))
        for made in (needs[:1], [*needs[:1], {"model": "x", "device": "b"}])
    )
    (line,) = diff(old, new)
    assert line.startswith("pool llm: model_needs +{'model': 'x'")
