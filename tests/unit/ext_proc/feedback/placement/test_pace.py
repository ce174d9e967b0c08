"""Pauses between looks."""

from __future__ import annotations

from ext_proc.feedback.placement.pace import (
    MAX_INTERVAL_S,
    QUICK_FOR_S,
    QUICK_S,
    SELDOM,
    NoListing,
    Pace,
)
from ext_proc.routing.values.listing import Listing, PlacementState, Row

STEADY = Listing(0.0, (Row("m", "1", PlacementState.READY),))
LOADS = Listing(0.0, (Row("m", "1", PlacementState.LOADING),))


def test_a_steady_replica_is_asked_at_the_interval():
    """The interval is the pool's, within a bound."""
    assert Pace(5.0).pause(STEADY, 100.0, changed=False) == 5.0
    assert Pace(1000.0).pause(STEADY, 100.0, changed=False) == MAX_INTERVAL_S
    assert Pace(5.0).pause(NoListing.FAILED, 100.0, changed=False) == 5.0


def test_changes_are_followed_quickly_for_a_while():
    """They come in groups."""
    pace = Pace(5.0)
    assert pace.pause(STEADY, 100.0, changed=True) == QUICK_S
    assert pace.pause(STEADY, 100.0 + QUICK_FOR_S - 0.1, changed=False) == QUICK_S
    assert pace.pause(STEADY, 100.0 + QUICK_FOR_S, changed=False) == 5.0


def test_what_loads_or_is_gone_is_asked_again_soon():
    """Its models may be READY at any moment."""
    assert Pace(5.0).pause(LOADS, 100.0, changed=False) == QUICK_S
    assert Pace(5.0).pause(NoListing.GONE, 100.0, changed=False) == QUICK_S


def test_a_replica_without_such_an_api_is_asked_seldom():
    """It may be replaced by one that has it."""
    assert Pace(5.0).pause(NoListing.SILENT, 100.0, changed=False) == 5.0 * SELDOM
