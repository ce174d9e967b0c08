"""gpu-composite: a weighted sum of readings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ext_proc.routing.policies.gpu_composite import WEIGHTS, GpuComposite
from ext_proc.routing.types import Reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.policies import Offer


def test_all_terms_count(offer: Callable[..., Offer]) -> None:
    """The price is the weighted sum, within 0 and 1, and its parts make it."""
    made = offer(2, pending=[8.0, 0.0], now=1.0)
    made.seats[0].replica.observe([Reading(at=0.5, gpu_used=1.0, kv_used=0.5)])
    made.seats[1].replica.observe([Reading(at=0.5, gpu_used=0.0, kv_used=0.0)])
    for seat in made.seats:
        seat.pace.latency_s = 0.2
    prices = GpuComposite().prices(made)
    assert prices == pytest.approx([0.2 + 0.3 + 0.1 + 0.05, 0.05])
    parts = GpuComposite().parts(made, 0)
    assert set(parts) == set(WEIGHTS)
    assert sum(parts.values()) == pytest.approx(prices[0])
    assert GpuComposite().picked(made, 1) == "least"


def test_what_nobody_tells_is_left_out(offer: Callable[..., Offer]) -> None:
    """Without readings the queue alone decides, with the whole weight."""
    made = offer(2, pending=[8.0, 0.0])
    assert GpuComposite().prices(made) == pytest.approx([0.5, 0.0])


def test_unknown_or_stale_is_the_median_of_the_others(offer: Callable[..., Offer]) -> None:
    """A replica that says nothing looks neither idle nor busy."""
    made = offer(4, now=10.0)
    for seat, used, at in zip(made.seats, (0.2, 0.6, 0.4, 0.9), (9, 9, 9, 1), strict=True):
        seat.replica.observe([Reading(at=float(at), gpu_used=used)])
    prices = GpuComposite().prices(made)
    assert prices[3] == prices[2]
    assert prices[0] < prices[2] < prices[1]
