"""Random fleets that overlap, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.rules.fleet import problems

VARIANTS = ("stable", "canary", "blue")


@st.composite
def fleets(draw) -> Fleet:
    """Draw a valid fleet from a small set of names, so that two fleets overlap."""
    drawn = []
    for name in draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)):
        base = 10 * ord(name)
        kept = draw(st.lists(st.sampled_from(VARIANTS), min_size=1, max_size=3, unique=True))
        numbers = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4, unique=True))
        endpoints = [
            endpoint(base + n, variant=draw(st.sampled_from(kept)), draining=draw(st.booleans()))
            for n in numbers
        ]
        used = {one["variant"] for one in endpoints}
        heaviest = draw(st.sampled_from(sorted(used)))
        variants = [
            {"name": v, "weight": (v == heaviest) + draw(st.integers(0, 3)) * (v in used)}
            for v in kept
        ]
        drawn.append(pool(name, default=not drawn, variants=variants, endpoints=endpoints))
    result = fleet(*drawn)
    assert not problems(result)
    return result
