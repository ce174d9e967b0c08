"""Offers for the policy tests."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from ext_proc.routing.ledger import Load
from ext_proc.routing.pace import FleetPace, Pace
from ext_proc.routing.policies import Offer
from ext_proc.routing.roster import Replica, Seat
from ext_proc.routing.types import Endpoint, EndpointKey, Features, Form, Request

if TYPE_CHECKING:
    from collections.abc import Callable


def make(count: int, **changes: Any) -> Offer:
    seats = []
    fleet = FleetPace()
    for number in range(count):
        key, address = EndpointKey(f"r{number}", 1), f"10.0.0.{number}:1"
        endpoint = Endpoint(key, "stable", address, None)
        seats.append(Seat(endpoint, address, Replica(key, Load()), number, Pace(fleet, 1.0)))
    offer = Offer(
        request=Request("llm", "stable", "http", Features(Form.GENERATE)),
        seats=seats,
        variant="stable",
        slots=count,
        pending=[0.0] * count,
        work=[0.0] * count,
        strength=[1.0] * count,
        matched=[0] * count,
        blocks=0,
        shared=0,
        load_factor=1.5,
        tokens=None,
        block_tokens=64.0,
        pace=fleet,
        now=0.0,
        rng=random.Random(0),
    )
    return offer.changed(**changes)


@pytest.fixture(scope="session")
def offer() -> Callable[..., Offer]:
    """Return a maker of offers: idle, equal and cold unless changed."""
    return make
