"""Incarnations of replicas."""

from __future__ import annotations

import pytest

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.revision import lasting_outcome, next_incarnations, text_hash


def with_replicas(*numbers: int, **more):
    """Return a fleet of these replicas."""
    return fleet(pool(endpoints=[endpoint(n, **more) for n in numbers]))


def test_the_first_fleet_is_warm() -> None:
    """Its replicas are assumed to have run before, so they have no slow start."""
    assert next_incarnations(None, {}, with_replicas(1, 2), 1, 5000) == {"r1": (1, 0), "r2": (1, 0)}


def test_a_returned_replica_is_another_one() -> None:
    """Its cache is empty, and findings of its earlier incarnation do not apply."""
    known = next_incarnations(with_replicas(1, 2), {"r1": (1, 0)}, with_replicas(1), 2, 10)
    assert known == {"r1": (1, 0)}
    back = next_incarnations(with_replicas(1), known, with_replicas(1, 2), 3, 20)
    assert back["r2"] == (3, 20)


def test_another_address_is_another_replica() -> None:
    """It is another process."""
    moved = with_replicas(1, grpc="127.0.0.1:9")
    assert next_incarnations(with_replicas(1), {"r1": (1, 0)}, moved, 2, 10) == {"r1": (2, 10)}


def test_other_fields_do_not_matter() -> None:
    """A drained or relabelled replica keeps its cache."""
    changed = with_replicas(1, draining=True, capacity=2.0)
    assert next_incarnations(with_replicas(1), {"r1": (1, 0)}, changed, 2, 10) == {"r1": (1, 0)}


def test_texts_differ_by_their_hash() -> None:
    """Even a comment changes the hash."""
    assert text_hash("a") == text_hash("a")
    assert text_hash("a") != text_hash("a #")


@pytest.mark.parametrize(
    ("known", "new", "lasting"),
    [
        ("", "acknowledged by 0 of 0 clients", "acknowledged by 0 of 0 clients"),
        ("acknowledged by 0 of 0 clients", "acknowledged by 2 of 2", "acknowledged by 2 of 2"),
        ("acknowledged by 2 of 2", "acknowledged by 0 of 0 clients", "acknowledged by 2 of 2"),
        ("superseded by the next revision", "acknowledged by 1 of 1", "superseded by the next rev"),
        ("acknowledged by 2 of 2", "refused by envoy-1", "refused by envoy-1"),
    ],
)
def test_what_was_recorded_of_a_revision_stays(known: str, new: str, lasting: str) -> None:
    """A restart publishes it again, to the clients of that moment; only a refusal is news."""
    assert lasting_outcome(known, new).startswith(lasting)
