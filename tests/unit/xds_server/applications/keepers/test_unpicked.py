"""The bounds of requests without a pick follow the limits that pickers report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from support.fleets import endpoint, fleet, pool
from xds_server.applications.keepers.unpicked_keeper import UnpickedBounds, UnpickedKeeper
from xds_server.applications.traffic.replicas import State, ToldLimit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xds_server.applications.traffic.picker_runs import Key
    from xds_server.fleet.model.fleet import Fleet

STABLE = ("llm/stable/http", "llm/stable/grpc")


def of(*numbers: int, **fields: Any) -> Fleet:
    """Return a fleet of one variant with these replicas."""
    endpoints = [endpoint(number) for number in numbers]
    return fleet(pool(variants=[{"name": "stable", "weight": 1}], endpoints=endpoints, **fields))


def limits(**most: int | Mapping[str, int] | None) -> dict[Key, State]:
    """Return what pickers report: limits of replicas, or of their models; ``None`` = no limit."""
    found: dict[Key, State] = {}
    for name, each in most.items():
        by_model = {"": each} if isinstance(each, int) else each or {}
        told = tuple(ToldLimit(model, limit, "set") for model, limit in by_model.items())
        found["llm", name] = State(limits=told, pickers=1)
    return found


def both(most: int) -> dict[str, int]:
    """Return one bound for both protocols."""
    return dict.fromkeys(STABLE, most)


def test_a_bound_is_the_sum_of_limits() -> None:
    """Of replicas as a whole, or of their models together."""
    bounds = UnpickedBounds()
    assert dict(bounds.look(of(1, 2), limits(r1=3, r2={"a": 1, "b": 2}))) == both(6)


def test_a_replica_without_a_limit_counts_as_the_largest() -> None:
    """It may be new; without any limit nothing waits in a picker, and nothing is bounded."""
    bounds = UnpickedBounds()
    assert dict(bounds.look(of(1, 2, 3), limits(r1=1, r2=3, r3=None))) == both(7)
    assert not bounds.look(of(1, 2), limits(r1=None, r2=None))


def test_limits_outlive_the_picker_that_reported_them() -> None:
    """What waited in it goes on just then."""
    bounds = UnpickedBounds()
    bounds.look(of(1, 2), limits(r1=2, r2=2))
    assert dict(bounds.look(of(1, 2), {})) == both(4)
    assert dict(bounds.look(of(1), {})) == both(2)


def test_a_replica_that_drains_does_not_count() -> None:
    """It takes no new requests."""
    bounds = UnpickedBounds()
    drains = fleet(
        pool(
            variants=[{"name": "stable", "weight": 1}],
            endpoints=[endpoint(1), endpoint(2, draining=True)],
        )
    )
    assert dict(bounds.look(drains, limits(r1=2, r2=2))) == both(2)


def test_bounds_do_not_follow_each_step_of_a_learned_limit() -> None:
    """They have some room, and never more than a quarter."""
    bounds = UnpickedBounds()
    told = [
        dict(bounds.look(of(1), limits(r1=most)))[STABLE[0]]
        for most in (16, 17, 18, 19, 18, 16, 15, 5, 4, 3)
    ]
    assert told == [18, 18, 18, 21, 21, 18, 18, 5, 5, 3]


def test_connections_bound_requests_over_http() -> None:
    """They wait in Envoy for one; none is refused for another bound."""
    waits = of(1, circuit_breaker={"max_connections_per_endpoint": 4})
    assert dict(UnpickedBounds().look(waits, limits(r1=2))) == {"llm/stable/grpc": 2}


async def test_only_changes_are_published_and_again_where_another_publication_ran() -> None:
    """That one comes first."""
    told: list[Any] = []

    async def publish(unpicked: Any) -> bool:
        told.append(dict(unpicked))
        return len(told) > 1

    control = SimpleNamespace(revision=1, fleet=of(1), publish_unpicked=publish)
    keeper = UnpickedKeeper(control, lambda: limits(r1=2))  # type: ignore[arg-type]  # enough of it
    for _ in range(3):
        await keeper.look()
    assert told == [both(2), both(2)]
