"""least-in-flight prices pending requests per strength."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.policies.least_in_flight import LeastInFlight

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.policies import Offer


def test_the_price_is_pending_per_strength(offer: Callable[..., Offer]) -> None:
    """The request being placed counts, so strength matters among idle replicas."""
    made = offer(3, pending=[0, 0, 3], strength=[1.0, 2.0, 4.0])
    assert LeastInFlight().prices(made) == [1.0, 0.5, 1.0]


def test_its_reason_is_least(offer: Callable[..., Offer]) -> None:
    """There is one label."""
    assert LeastInFlight().picked(offer(1), 0) == "least"
