"""Slowness: replicas whose requests take much longer than alike requests at their peers. Pure.

It bars no replica: caches, models and load make honest replicas differ. It is what operators are
told (``tidegate status``), so it is slow to speak and needs many answers.

Rules:

1. Requests are alike if they are of one pool, one model and one doubling of uncached tokens. Each
   such kind has a running mean of logarithms over all replicas. What counts for a replica is by how
   much its requests differ from that mean, so a replica that gets other requests is not slow.
2. A replica's differences are kept as a mean and a variance in which an old one counts half as much
   after ``HALF_S``. One difference counts for at most ``CLIP``, so one request of an hour is one.
3. A replica is slow if its requests take ``FACTOR`` times as long as those of its peers (the other
   replicas of its variant), both have at least ``LEAST`` recent ones, and the difference is
   ``DEVIATIONS`` times its standard error, at each look for ``LASTS_S``. It is slow no more below
   ``ENDS`` times, or without recent requests.
4. At most one request in ``EVERY_S`` is looked at, so that it costs next to nothing.
5. At most ``MAX_KINDS`` kinds of one pool are kept; requests of further kinds are not compared.
"""

from __future__ import annotations

from math import exp, log, sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.latency.estimates import Estimate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ext_proc.routing.values.pool import EndpointKey, Pool
    from ext_proc.routing.values.ticket import Ticket

HALF_S: Final = 30.0
CLIP: Final = 4.0
"""Largest difference that counts, as a natural logarithm: a factor of 55."""
FACTOR: Final = 3.0
ENDS: Final = 2.0
LEAST: Final = 8.0
"""Least recent requests of a replica, and of its peers together, each by its weight."""
DEVIATIONS: Final = 4.0
LASTS_S: Final = 5.0
EVERY_S: Final = 0.02
MAX_KINDS: Final = 256
_LEAST_S: Final = 1e-4
_RATE: Final = log(2.0) / HALF_S


class Slow(NamedTuple):
    """How slow a replica is."""

    factor: float
    """How many times as long as those of its peers its requests take."""
    requests: int
    """Requests of the last half minute on which that rests, by weight."""


class _Sums:
    """Decayed sums of one replica's differences."""

    __slots__ = ("at", "difference", "number", "slow", "square", "suspected_at")

    def __init__(self) -> None:
        self.at = 0.0
        self.number = self.difference = self.square = 0.0
        self.suspected_at: float | None = None
        self.slow: Slow | None = None

    def decay(self, now: float) -> None:
        if now > self.at:
            kept = exp((self.at - now) * _RATE)
            self.number *= kept
            self.difference *= kept
            self.square *= kept
            self.at = now


class _Pool:
    __slots__ = ("kinds", "sums", "variants")

    def __init__(self) -> None:
        self.kinds: dict[tuple[str, int], Estimate] = {}
        self.sums: dict[EndpointKey, _Sums] = {}
        self.variants: dict[EndpointKey, str] = {}


class Slowness:
    """The slowness of all replicas; see the module's rules."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}
        self.due = 0.0
        """When the next request is to be given to ``took``, monotonic seconds."""

    def set_pools(self, pools: Mapping[str, Pool]) -> None:
        """Replace the pools; what is known of replicas that stay is kept."""
        before, self._pools = self._pools, {}
        for name, pool in pools.items():
            kept = self._pools[name] = before.get(name) or _Pool()
            kept.variants = {each.key: each.variant for each in pool.endpoints}
            kept.sums = {key: sums for key, sums in kept.sums.items() if key in kept.variants}

    def took(self, ticket: Ticket, now: float) -> None:
        """Take a request that has ended.

        Args:
            ticket: Its ticket; one that has nothing alike (``Ticket.kind``) is ignored.
            now: Monotonic seconds.
        """
        self.due = now + EVERY_S
        pool = self._pools.get(ticket.pool)
        if pool is None or ticket.kind is None or ticket.endpoint not in pool.variants:
            return
        kind = ticket.kind, int(ticket.work).bit_length()
        usual = pool.kinds.get(kind)
        if usual is None:
            if len(pool.kinds) >= MAX_KINDS:
                return
            usual = pool.kinds[kind] = Estimate()
        seconds = max(now - ticket.at, _LEAST_S)
        if usual.count:
            difference = min(max(log(seconds) - usual.log, -CLIP), CLIP)
            sums = pool.sums.get(ticket.endpoint)
            if sums is None:
                sums = pool.sums[ticket.endpoint] = _Sums()
            sums.decay(now)
            sums.number += 1.0
            sums.difference += difference
            sums.square += difference * difference
        usual.put(seconds)

    def look(self, now: float) -> None:
        """Judge all replicas; call about once a second.

        Args:
            now: Monotonic seconds.
        """
        for pool in self._pools.values():
            if len(pool.sums) > 1 or any(each.slow for each in pool.sums.values()):
                _judge(pool, now)

    def slow(self) -> Iterator[tuple[str, EndpointKey, Slow]]:
        """Yield pool, replica and slowness of each replica that is slow."""
        for name, pool in self._pools.items():
            for key, sums in pool.sums.items():
                if sums.slow is not None:
                    yield name, key, sums.slow


def _judge(pool: _Pool, now: float) -> None:
    by_variant: dict[str, list[_Sums]] = {}
    for key, sums in pool.sums.items():
        sums.decay(now)
        by_variant.setdefault(pool.variants[key], []).append(sums)
    for several in by_variant.values():
        for sums in several:
            found = _compared(sums, (each for each in several if each is not sums))
            least = ENDS if sums.slow is not None else FACTOR
            if found is None or found.factor < least:
                sums.suspected_at = sums.slow = None
                continue
            if sums.suspected_at is None:
                sums.suspected_at = now
            if now - sums.suspected_at >= LASTS_S:
                sums.slow = found


def _compared(own: _Sums, peers: Iterable[_Sums]) -> Slow | None:
    """Return how much longer a replica's requests take; ``None`` = too little is known."""
    number = difference = square = 0.0
    for each in peers:
        if each.slow is None:  # of several slow replicas, each is compared with the others
            number += each.number
            difference += each.difference
            square += each.square
    if own.number < LEAST or number < LEAST:
        return None
    mean, usual = own.difference / own.number, difference / number
    spread = (own.square / own.number - mean * mean) / own.number
    spread += (square / number - usual * usual) / number
    if mean - usual < DEVIATIONS * sqrt(max(spread, 0.0)):
        return None
    return Slow(exp(mean - usual), round(own.number))
