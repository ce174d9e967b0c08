"""Policies of other packages: what they are offered, and what happens where they fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ext_proc.routing.policies.outside import INTERFACE, MAX_REASON, Offer, Outside
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


def test_the_offer_has_the_fields_of_its_version() -> None:
    """One that is renamed or moved needs a new version."""
    assert Offer._fields == (
        *("request", "candidates", "pending", "work", "strength"),
        *("matched", "blocks", "tokens", "now", "rng"),
    )
    assert INTERFACE == 1


def test_a_policy_is_offered_what_ours_see_and_no_more() -> None:
    """Each field has our policies' value, and none of the lists can be changed."""
    seen: list[Offer] = []

    def prices(offer: Offer) -> list[float]:
        seen.append(offer)
        return [0.0, 0.0]

    context = make(2, pending=[5.0, 1.0], matched=[0, 3], blocks=4, tokens=99.0, now=7.0)
    Outside(Own(prices)).prices(context)
    for name, given in seen[0]._asdict().items():
        own = getattr(context, name)
        assert given == (tuple(own) if isinstance(own, list) else own), name
        assert not isinstance(given, list), name


def test_prices_are_taken_and_picks_are_told() -> None:
    """A policy decides as it says; an error in what it notes changes nothing."""
    own = Own(lambda offer: [float(each.position) for each in offer.candidates])
    policy, context = Outside(own), make(2)
    assert policy.prices(context) == [0.0, 1.0]
    assert policy.picked(context, 0) == policy.picked(context, 1) == "outside"
    assert own.seen == [0, 1]
    assert policy.describe(0.0) == {"failures": 1, "reason": "IndexError: tuple index out of range"}


@pytest.mark.parametrize(
    ("prices", "reason"),
    [
        (_raise, "KeyError: 'own'"),
        (lambda _: [1.0], "1 prices for 2 candidates"),
        (lambda _: [1.0, float("nan")], "nan is no price"),
        (lambda _: [-1e200, 1.0], "-1e+200 is no price"),
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


def test_only_the_first_failure_is_told() -> None:
    """A policy that fails for each request does not fill the log."""
    told: list[str] = []
    policy, context = Outside(Own(_raise), told.append), make(2)
    policy.prices(context)
    policy.prices(context)
    assert told == ["KeyError: 'own'"]
    assert policy.describe(0.0)["failures"] == 2
