"""The price of a hop: the seconds that a pick in another zone costs a request.

Rules:

1. A request takes one round trip to its first byte on a connection that Envoy keeps, and none for
   each further token, so a hop costs the round trip to the other zone less that within the own one.
2. A replica's round trip is the least of the last one to two ``SPAN_S``; a zone's is the lower
   median of its replicas'. A replica that answers late raises the price of no other one, unless
   half of its zone does.
3. A measured price is within ``LEAST_S``, by which equal prices keep to the own zone, and
   ``MOST_S``. It is ``LEAST_S`` until both are known. Where no replica of the own zone is known,
   the nearest zone stands for it.
4. What a pool sets (``zone_hop_s``) is taken as it is, for all other zones.
"""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ext_proc.routing.state.candidates import Candidate
    from ext_proc.routing.values.pool import Pool

SPAN_S: Final = 120.0
"""Seconds after which measuring a least round trip begins anew."""
LEAST_S: Final = 0.0001
MOST_S: Final = 0.3


class ZoneHops:
    """Prices of hops from one picker's zone.

    Args:
        zone: Zone of this picker; empty = unknown, and then no hop has a price.
    """

    def __init__(self, zone: str = "") -> None:
        self.zone = zone
        self._since = float("-inf")
        self._least: dict[tuple[str, str], float] = {}
        """Least round trip of this span, seconds, by zone and address."""
        self._before: dict[tuple[str, str], float] = {}
        """That of the span before."""
        self._measured: dict[str, float] = {}
        """Price of a hop by zone, seconds."""

    def measured(self, trips: Mapping[tuple[str, str], float], now: float) -> None:
        """Take one round of measurements.

        Args:
            trips: Round trips by zone and address, seconds, without replicas that did not answer.
            now: Monotonic seconds.
        """
        if now - self._since >= SPAN_S:
            self._since = now
            self._before, self._least = self._least, {}
        for at, trip in trips.items():
            self._least[at] = min(trip, self._least.get(at, trip))
        by_zone: dict[str, list[float]] = {}
        for at in {**self._before, **self._least}:
            known = [each[at] for each in (self._before, self._least) if at in each]
            by_zone.setdefault(at[0], []).append(min(known))
        trip_of = {zone: median_low(trips) for zone, trips in by_zone.items()}
        own = trip_of.get(self.zone, min(trip_of.values(), default=0.0))
        self._measured = {
            zone: min(MOST_S, max(LEAST_S, trip - own)) for zone, trip in trip_of.items()
        }

    def seconds(self, pool: Pool, candidates: Sequence[Candidate]) -> list[float]:
        """Return the price of the hop to each candidate; 0 in the own zone."""
        own, known = self.zone, self._measured
        if not own:
            return [0.0] * len(candidates)
        if pool.zone_hop_s:
            return [0.0 if each.zone == own else pool.zone_hop_s for each in candidates]
        return [0.0 if each.zone == own else known.get(each.zone, LEAST_S) for each in candidates]

    def describe(self) -> dict[str, object]:
        """Return the own zone and the measured prices, ready for JSON."""
        hops = {zone: round(s, 6) for zone, s in self._measured.items() if zone != self.zone}
        return {"zone": self.zone, "measured_s": hops}
