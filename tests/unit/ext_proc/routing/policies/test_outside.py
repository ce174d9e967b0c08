"""Policies of other packages: what they are offered, and what happens where they fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ext_proc.compiled import compiled
from ext_proc.routing.policies.outside import INTERFACE, MAX_REASON, Offer, Outside
from ext_proc.routing.state.context import SchedulingContext
from support.contexts import make

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Own:
    """A policy with the prices that it is told to give."""

    interface = INTERFACE

    def __init__(self, prices: Callable[[Any], Any]) -> None:
        self._prices = prices
        self.seen: list[int] = []

    def prices(self, offer: Offer) -> Sequence[float]:
        """Return the prices."""
        found: Sequence[float] = self._prices(offer)
        return found

    def picked(self, offer: Offer, index: int) -> None:
        """Note the candidate, and fail for the second one."""
        self.seen.append(index)
        offer.candidates[index + 1]


def _raise(_: object) -> None:
    raise KeyError("own")


@pytest.mark.skipif(compiled(), reason="a compiled class keeps no annotations")
def test_the_offer_is_part_of_what_our_policies_see() -> None:
    """Each promised field exists; one that is renamed here needs a new version."""
    names = set(Offer.__annotations__)
    assert names <= set(SchedulingContext.__slots__)
    assert names == {
        *("request", "candidates", "pending", "work", "strength"),
        *("matched", "blocks", "tokens", "now", "rng"),
    }
    assert INTERFACE == 1


def test_prices_are_taken_and_picks_are_told() -> None:
    """A policy decides as it says; an error in what it notes changes nothing."""
    own = Own(lambda offer: [float(each.position) for each in offer.candidates])
    policy, context = Outside(own), make(2)
    assert policy.prices(context) == [0.0, 1.0]
    assert policy.picked(context, 0) == policy.picked(context, 1) == "outside"
    assert own.seen == [0, 1]
    assert policy.describe(0.0) == {"failures": 1, "reason": "IndexError: list index out of range"}


@pytest.mark.parametrize(
    ("prices", "reason"),
    [
        (_raise, "KeyError: 'own'"),
        (lambda _: [1.0], "1 prices for 2 candidates"),
        (lambda _: [1.0, float("nan")], "a price is not finite"),
        (lambda _: None, "TypeError: 'NoneType' object is not iterable"),
        (lambda _: [float("x" * 999), 1], "ValueError: could not convert string to float: 'xxx"),
    ],
)
def test_least_in_flight_decides_where_a_policy_fails(
    prices: Callable[[Any], Any], reason: str
) -> None:
    """No request fails by another's code; the state says why, within a bound."""
    policy, context = Outside(Own(prices)), make(2, pending=[5.0, 1.0])
    assert policy.prices(context) == [6.0, 2.0]
    state = policy.describe(0.0)
    assert state["failures"] == 1
    assert str(state["reason"]).startswith(reason)
    assert len(str(state["reason"])) <= MAX_REASON
