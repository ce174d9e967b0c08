"""The guard of the last usable replica."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.change import set_draining, set_weights
from xds_server.fleet.guards.last_replica import MAX_NAMED, LastReplica, Taken, taken
from xds_server.fleet.model.fleet import Fleet

BEFORE = fleet()
"""r1 and r2 of stable (90), r3 of canary (10)."""
EJECTED = "ejected 12 s more: 5 errors"


def lost(old: Fleet, new: Fleet, **left_alone: str) -> list[tuple[str, str | None]]:
    """Return variant and protocol of each finding."""
    named = {("llm", name): why for name, why in left_alone.items()}
    return [(each.variant, each.protocol) for each in taken(old, new, named)]


def with_endpoints(*endpoints: dict[str, Any], **more: Any) -> Fleet:
    """Return a fleet of one pool with these endpoints."""
    return fleet(pool(default=True, endpoints=list(endpoints), **more))


def test_the_last_one_may_not_drain() -> None:
    """Its variant would have a share and no replica."""
    first = set_draining(BEFORE, "r1", True)
    assert lost(first, set_draining(first, "r2", True)) == [("stable", None)]


def test_a_sick_replica_may_drain_where_it_is_the_last() -> None:
    """It takes nothing: the variant had no usable replica before."""
    assert lost(BEFORE, set_draining(BEFORE, "r3", True), r3=EJECTED) == []


def test_a_weight_for_nobody_is_refused() -> None:
    """A share of the requests would have no replica."""
    unweighted = set_weights(BEFORE, "llm", {"canary": 0})
    idle = set_draining(unweighted, "r3", True)
    assert lost(unweighted, idle) == []
    assert lost(idle, set_weights(idle, "llm", {"canary": 10})) == [("canary", None)]


def test_the_message_names_what_remains() -> None:
    """Each replica of the variant with its state, and what other variants have."""
    new = set_draining(BEFORE, "r1", True)
    (found,) = taken(BEFORE, new, {("llm", "r2"): EJECTED})
    assert str(LastReplica([found])) == (
        "this would leave variant stable of pool llm (90% of its requests) without a usable"
        " replica: r1 drains, r2 is ejected 12 s more: 5 errors (usable: 1 of canary). Give the"
        " variant another replica or weight 0 first, or force the change (--force)"
    )


def test_a_replacement_in_one_step_is_no_loss() -> None:
    """A replica at a new address is usable until pickers say otherwise."""
    moved = with_endpoints(endpoint(1), endpoint(2), endpoint(9, id="r3", variant="canary"))
    assert lost(BEFORE, moved, r3=EJECTED) == []


def test_the_last_one_of_a_protocol_counts() -> None:
    """Clients of gRPC cannot use a replica that speaks HTTP only."""
    old = with_endpoints(endpoint(1), endpoint(2, grpc=None), endpoint(3, variant="canary"))
    assert lost(old, set_draining(old, "r1", True)) == [("stable", "grpc")]


def test_a_protocol_that_is_given_up_is_no_loss() -> None:
    """No replica of the variant speaks it any more, which no accident does."""
    new = with_endpoints(
        endpoint(1, grpc=None), endpoint(2, grpc=None), endpoint(3, variant="canary")
    )
    assert lost(BEFORE, new) == []


@pytest.mark.parametrize("many", [MAX_NAMED, MAX_NAMED + 1])
def test_messages_are_bounded(many: int) -> None:
    """A large variant is named by its first replicas, a large loss by its first variants."""
    old = with_endpoints(*(endpoint(each) for each in range(1, many + 2)))
    new = with_endpoints(*(endpoint(each, draining=True) for each in range(1, many + 1)))
    (found,) = taken(old, new, {})
    assert ("more" in found.remains) == (many > MAX_NAMED)
    said = str(LastReplica([Taken("llm", f"v{n}", 0.1, None, "none") for n in range(many)]))
    assert ("more variants" in said) == (many > MAX_NAMED)


STATES = st.lists(
    st.tuples(st.sampled_from(["stable", "canary"]), st.booleans(), st.booleans()), max_size=5
)
WEIGHTS = st.tuples(st.integers(0, 2), st.integers(0, 2)).filter(any)


def drawn(states: list[tuple[str, bool, bool]], weights: tuple[int, int]) -> Fleet:
    """Return a fleet with these replicas: variant, draining, and whether it speaks gRPC."""
    return with_endpoints(
        *(
            endpoint(n, variant=variant, draining=draining, **({} if grpc else {"grpc": None}))
            for n, (variant, draining, grpc) in enumerate(states, 1)
        ),
        variants=[
            {"name": "stable", "weight": weights[0]},
            {"name": "canary", "weight": weights[1]},
        ],
    )


def served(of: Fleet, sick: frozenset[str]) -> dict[str, bool]:
    """Return whether each weighted variant has a usable replica."""
    (only,) = of.pools
    return {
        variant.name: any(
            not each.draining and each.id not in sick
            for each in only.endpoints
            if only.variant_of(each) == variant.name
        )
        for variant in only.variants
        if variant.weight
    }


@given(STATES, WEIGHTS, STATES, WEIGHTS, st.sets(st.integers(1, 5)))
def test_what_passes_leaves_no_served_variant_without_replicas(
    before: list[tuple[str, bool, bool]],
    weights: tuple[int, int],
    after: list[tuple[str, bool, bool]],
    later: tuple[int, int],
    numbers: set[int],
) -> None:
    """Whatever changes at once: a weighted variant that had a usable replica keeps one."""
    sick = frozenset(f"r{n}" for n in numbers)
    old, new = drawn(before, weights), drawn(after, later)
    found = {each.variant for each in taken(old, new, {("llm", n): "sick" for n in sick})}
    was = served(old, sick)
    here = {each.id for each in old.pools[0].endpoints}
    moved = {
        each.id
        for each in new.pools[0].endpoints
        for one in old.pools[0].endpoints
        if one.id == each.id and (one.http, one.grpc) != (each.http, each.grpc)
    }
    now = served(new, (sick & here) - moved)
    for variant, usable in now.items():
        if not usable:
            assert (variant in found) == (was.get(variant, True))
