"""What a change leaves of each variant."""

from __future__ import annotations

from support.fleets import endpoint, fleet, pool
from xds_server.admin.views.remaining import MAX_VARIANTS, Remaining, remaining

BASE = fleet(pool(default=True), pool("vision", endpoints=[endpoint(9)]))
DRAINED = fleet(
    pool(default=True, endpoints=[endpoint(1, draining=True), endpoint(2), endpoint(3)]),
    pool("vision", endpoints=[endpoint(9)]),
)


def test_a_drain_leaves_the_other_replicas() -> None:
    """Only pools that differ are listed; r3 moves to the first variant here."""
    assert remaining(BASE, DRAINED, lambda *_: True) == [
        Remaining("llm", "stable", 90, 90, 3, 2, 2, 2.0, 2.0),
        Remaining("llm", "canary", 10, 10, 0, 0, 1, 0.0, 1.0),
    ]


def test_sick_replicas_do_not_count() -> None:
    """They are left alone by pickers before and after."""
    found = remaining(BASE, DRAINED, lambda _, each: each.id != "r2")
    assert [(each.usable_before, each.usable) for each in found] == [(1, 1), (1, 0)]


def test_a_pool_that_goes_leaves_nothing() -> None:
    """Its variants are listed with what they had; so is one that comes."""
    alone = fleet(pool(default=True))
    (gone, _) = remaining(BASE, alone, lambda *_: True)
    assert (gone.pool, gone.weight, gone.weight_before, gone.usable) == ("vision", 0, 90, 0)
    (come, _) = remaining(alone, BASE, lambda *_: True)
    assert (come.usable_before, come.usable, come.capacity) == (0, 1, 1.0)


def test_the_list_is_bounded() -> None:
    """A change of everything is no reason for an answer of any size."""
    many = fleet(
        *(pool(f"p{n}", endpoints=[endpoint(n + 1)]) for n in range(MAX_VARIANTS // 2 + 1))
    )
    assert len(remaining(None, many, lambda *_: True)) == MAX_VARIANTS
