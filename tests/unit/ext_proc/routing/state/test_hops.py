"""The price of a hop follows from round trips, and no single replica moves it far."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ext_proc.routing.state.hops import LEAST_S, MOST_S, SPAN_S, ZoneHops
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.telemetry.hops import SAMPLE, ZONES, targets_of

if TYPE_CHECKING:
    from collections.abc import Mapping

TRIPS = {("a", "1"): 0.001, ("b", "2"): 0.021}


def priced(hops: ZoneHops) -> Mapping[str, object]:
    """Return the price of each zone."""
    described = hops.describe()["measured_s"]
    assert isinstance(described, dict)
    return described


def pool(zones: str, name: str = "p", zone_hop_s: float = 0.0, port: int = 80) -> Pool:
    """Return a pool that prefers the picker's zone, with an endpoint per letter, its zone."""
    endpoints = tuple(
        Endpoint(EndpointKey(f"{zone}{number}", 1), "s", f"{zone}{number}:{port}", None, zone=zone)
        for number, zone in enumerate(zones)
    )
    variants = (Variant("s", 1),)
    return Pool(
        name, variants=variants, endpoints=endpoints, prefer_zone=True, zone_hop_s=zone_hop_s
    )


def test_a_hop_costs_the_longer_round_trip() -> None:
    """The own zone's is the request's in any case."""
    hops = ZoneHops("a")
    hops.measured(TRIPS, 0.0)
    assert priced(hops) == {"b": 0.02}


def test_the_least_round_trip_counts_until_it_is_old() -> None:
    """A loaded minute changes nothing; a longer way is known after two spans at the latest."""
    hops = ZoneHops("a")
    hops.measured(TRIPS, 0.0)
    slower = {**TRIPS, ("b", "2"): 0.101}
    hops.measured(slower, SPAN_S - 1)
    assert priced(hops) == {"b": 0.02}
    hops.measured(slower, SPAN_S)
    assert priced(hops) == {"b": 0.02}
    hops.measured(slower, 2 * SPAN_S)
    assert priced(hops) == {"b": 0.1}


@pytest.mark.parametrize(
    ("own", "other", "price"),
    [
        ([0.001, 0.9], [0.003], 0.002),
        ([0.001], [0.003, 0.9], 0.002),
        ([0.001], [9.0], MOST_S),
        ([9.0], [0.001], LEAST_S),
    ],
)
def test_a_late_replica_moves_its_zone_within_bounds(
    own: list[float], other: list[float], price: float
) -> None:
    """One of several moves nothing; the only one neither attracts nor repels beyond the bounds."""
    hops = ZoneHops("a")
    trips = {("a", str(number)): trip for number, trip in enumerate(own)}
    hops.measured(trips | {("b", str(number)): trip for number, trip in enumerate(other)}, 0.0)
    assert priced(hops)["b"] == pytest.approx(price)


def test_the_nearest_zone_stands_for_a_lost_one() -> None:
    """Without a replica of its own zone a picker prefers the nearest, until one is back."""
    hops = ZoneHops("a")
    far = {("b", "2"): 0.021, ("c", "3"): 0.061}
    hops.measured(far, 0.0)
    assert priced(hops) == {"b": LEAST_S, "c": 0.04}
    hops.measured({**far, ("a", "1"): 0.001}, 1.0)
    assert priced(hops) == {"b": 0.02, "c": 0.06}


def test_a_sample_of_each_zone_is_asked() -> None:
    """Bounded in replicas and zones; pools that set the price and no others are left out."""
    many = pool("a" * (SAMPLE + 1) + "b", "many")
    assert targets_of([many, many]) == [
        *(("a", f"a{number}:80") for number in range(SAMPLE)),
        ("b", f"b{SAMPLE + 1}:80"),
    ]
    assert targets_of([pool("ab", zone_hop_s=0.1)]) == []
    letters = "".join(chr(ord("a") + number) for number in range(ZONES + 2))
    assert len(targets_of([pool(letters)])) == ZONES
