"""Slowness: replicas whose requests take much longer than alike requests at their peers, or before.

It bars no replica: caches, models and load make honest replicas differ. It is what operators are
told (``tidegate status``), so it is slow to speak and needs many answers.

Rules:

1. Requests are alike if they are of one pool, one model, one doubling of uncached tokens and one of
   the longest answer that they ask for. Each such kind has a running mean of logarithms over all
   replicas. What counts for a replica is by how much its requests differ from that mean, so a
   replica that gets other requests is not slow.
2. A replica's differences are kept as a mean and a variance in which an old one counts half as
   much after ``HALF_S``. One difference counts for at most ``CLIP``, so one request of an hour is
   one.
3. A replica is *slow* if its requests take ``FACTOR`` times as long as those of its peers (the
   other replicas of its variant), both have at least ``LEAST`` recent ones, and the difference is
   ``DEVIATIONS`` times its standard error, at each look for ``LASTS_S``. It is slow no more below
   ``ENDS`` times, or without recent requests.
4. A replica that is not slow is *slower* if the same holds of its requests, with ``SOON_S`` for
   ``HALF_S``, and the *past* of its variant: the mean of each kind, in which a request counts half
   after ``PAST_HALF_S``. So what has changed for good is no news after about a quarter of an hour.
   A kind has a past after ``PAST_AFTER_S``. Where a replica gets more work than in its past, its
   requests must take longer by that factor, too: a busier replica is not a slower one.
5. At most one request in ``EVERY_S`` is looked at, so that it costs next to nothing.
6. At most ``MAX_KINDS`` kinds of one pool are kept, and as many pasts; requests of further kinds
   are not compared.
"""

from __future__ import annotations

from math import exp, log, sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.latency.model import Estimate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ext_proc.routing.state.candidates import Replica
    from ext_proc.routing.values.pool import EndpointKey, Pool
    from ext_proc.routing.values.ticket import Ticket

HALF_S: Final = 30.0
SOON_S: Final = 15.0
PAST_HALF_S: Final = 900.0
PAST_AFTER_S: Final = 120.0
CLIP: Final = 4.0
"""Largest difference that counts, as a natural logarithm: a factor of 55."""
FACTOR: Final = 3.0
ENDS: Final = 2.0
LEAST: Final = 8.0
"""Least recent requests of a replica, and of its peers together or of the past of a kind, each by
its weight."""
DEVIATIONS: Final = 4.0
LASTS_S: Final = 5.0
EVERY_S: Final = 0.02
MAX_KINDS: Final = 256
_LEAST_S: Final = 1e-4
_RATE: Final = log(2.0) / HALF_S
_PAST_RATE: Final = log(2.0) / PAST_HALF_S


class Slow(NamedTuple):
    """How slow a replica is."""

    factor: float
    """How many times as long as those of its peers, or as in the past, its requests take."""
    requests: int
    """Recent requests on which that rests, by weight."""


class _Moments:
    """Decayed sums of one replica's differences."""

    __slots__ = ("_rate", "at", "number", "square", "sum")

    def __init__(self, half_s: float) -> None:
        self._rate = log(2.0) / half_s
        self.at = 0.0
        self.number = self.sum = self.square = 0.0

    def decay(self, now: float) -> None:
        if now > self.at:
            kept = exp((self.at - now) * self._rate)
            self.number *= kept
            self.sum *= kept
            self.square *= kept
            self.at = now

    def add(self, difference: float, now: float) -> None:
        self.decay(now)
        self.number += 1.0
        self.sum += difference
        self.square += difference * difference


class _Verdict:
    """Whether a replica is slow, in one sense."""

    __slots__ = ("slow", "suspected_at")

    def __init__(self) -> None:
        self.suspected_at: float | None = None
        self.slow: Slow | None = None

    def judge(self, found: Slow | None, now: float, least: float = FACTOR) -> None:
        if found is None or found.factor < (ENDS if self.slow is not None else least):
            self.suspected_at = self.slow = None
            return
        if self.suspected_at is None:
            self.suspected_at = now
        if now - self.suspected_at >= LASTS_S:
            self.slow = found


class _Load:
    """The work that a replica gets in a second, now and in its past."""

    __slots__ = ("_at", "_now", "_past", "_sent", "_weight")

    def __init__(self, sent: float, now: float) -> None:
        self._at, self._sent = now, sent
        self._now = self._past = self._weight = 0.0

    def look(self, sent: float, now: float) -> None:
        passed = now - self._at
        if passed <= 0.0:
            return
        rate = max(sent - self._sent, 0.0) / passed
        self._at, self._sent = now, sent
        self._now += (rate - self._now) * (1.0 - exp(-passed * _RATE))
        self._weight = self._weight * exp(-passed * _PAST_RATE) + passed
        self._past += (rate - self._past) * passed / self._weight

    @property
    def grown(self) -> float:
        """How many times as much it gets now as in its past, at least 1."""
        return max(self._now / self._past, 1.0) if self._past > 0.0 else 1.0


class _Past:
    """The usual duration of requests of one kind at one variant, as a logarithm."""

    __slots__ = ("at", "mean", "since", "weight")

    def __init__(self, now: float) -> None:
        self.at = self.since = now
        self.mean = self.weight = 0.0

    def differs(self, value: float, now: float) -> float | None:
        """Return by how much a duration differs from it; ``None`` = it is not known yet."""
        known = self.weight >= LEAST and now - self.since >= PAST_AFTER_S
        return value - self.mean if known else None

    def put(self, value: float, now: float) -> None:
        self.weight = self.weight * exp((self.at - now) * _PAST_RATE) + 1.0
        self.at = now
        step = value - self.mean
        if self.weight > LEAST:
            step = min(max(step, -CLIP), CLIP)
        self.mean += step / self.weight


class _Replica:
    """What is known of one replica in one pool."""

    __slots__ = ("load", "past", "peers", "slow", "slower")

    def __init__(self) -> None:
        self.peers = _Moments(HALF_S)
        """Differences from all replicas' requests."""
        self.past = _Moments(SOON_S)
        """Differences from the past."""
        self.slow = _Verdict()
        self.slower = _Verdict()
        self.load: _Load | None = None


class _Pool:
    __slots__ = ("kinds", "pasts", "replicas", "variants")

    def __init__(self) -> None:
        self.kinds: dict[tuple[str, int, int], Estimate] = {}
        self.pasts: dict[tuple[str, tuple[str, int, int]], _Past] = {}
        """By variant and kind."""
        self.replicas: dict[EndpointKey, _Replica] = {}
        self.variants: dict[EndpointKey, str] = {}


class Slowness:
    """The slowness of all replicas; see the module's rules."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}
        self.due = 0.0
        """When the next request is to be given to ``took``, monotonic seconds."""

    def set_pools(self, pools: Mapping[str, Pool]) -> None:
        """Replace the pools; what is known of replicas and variants that stay is kept."""
        before, self._pools = self._pools, {}
        for name, pool in pools.items():
            kept = self._pools[name] = before.get(name) or _Pool()
            kept.variants = {each.key: each.variant for each in pool.endpoints}
            kept.replicas = {k: each for k, each in kept.replicas.items() if k in kept.variants}
            named = {each.name for each in pool.variants}
            kept.pasts = {k: each for k, each in kept.pasts.items() if k[0] in named}

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
        kind = ticket.kind, int(ticket.work).bit_length(), ticket.most.bit_length()
        value = log(max(now - ticket.at, _LEAST_S))
        usual, past = pool.kinds.get(kind), pool.pasts.get((pool.variants[ticket.endpoint], kind))
        if usual is None and len(pool.kinds) < MAX_KINDS:
            usual = pool.kinds[kind] = Estimate()
        if past is None and len(pool.pasts) < MAX_KINDS:
            past = pool.pasts[pool.variants[ticket.endpoint], kind] = _Past(now)
        if usual is not None:
            if usual.count:
                self._differ(pool, ticket.endpoint).peers.add(_clipped(value - usual.log), now)
            usual.put(exp(value))
        if past is not None:
            difference = past.differs(value, now)
            if difference is not None:
                self._differ(pool, ticket.endpoint).past.add(_clipped(difference), now)
            past.put(value, now)

    def _differ(self, pool: _Pool, key: EndpointKey) -> _Replica:
        found = pool.replicas.get(key)
        if found is None:
            found = pool.replicas[key] = _Replica()
        return found

    def look(self, now: float, members: Mapping[EndpointKey, Replica]) -> None:
        """Judge all replicas; call about once a second.

        Args:
            now: Monotonic seconds.
            members: The replicas that are registered.
        """
        for pool in self._pools.values():
            for key, each in pool.replicas.items():
                each.peers.decay(now)
                each.past.decay(now)
                member = members.get(key)
                if member is None:
                    continue
                if each.load is None:
                    each.load = _Load(member.sent, now)
                each.load.look(member.sent, now)
            _judge(pool, now)

    def slow(self) -> Iterator[tuple[str, EndpointKey, Slow]]:
        """Yield pool, replica and slowness of each replica that is slow."""
        for name, pool in self._pools.items():
            for key, each in pool.replicas.items():
                if each.slow.slow is not None:
                    yield name, key, each.slow.slow

    def slower(self) -> Iterator[tuple[str, EndpointKey, Slow]]:
        """Yield pool, replica and slowness of each replica that is slower than in the past."""
        for name, pool in self._pools.items():
            for key, each in pool.replicas.items():
                if each.slower.slow is not None and each.slow.slow is None:
                    yield name, key, each.slower.slow


def _clipped(difference: float) -> float:
    return min(max(difference, -CLIP), CLIP)


def _judge(pool: _Pool, now: float) -> None:
    by_variant: dict[str, list[_Replica]] = {}
    for key, found in pool.replicas.items():
        by_variant.setdefault(pool.variants[key], []).append(found)
    for several in by_variant.values():
        for each in several:
            each.slow.judge(_compared(each, (one for one in several if one is not each)), now)
            grown = 1.0 if each.load is None else each.load.grown
            each.slower.judge(_changed(each.past), now, FACTOR * grown)


def _compared(own: _Replica, peers: Iterable[_Replica]) -> Slow | None:
    """Return how much longer a replica's requests take; ``None`` = too little is known."""
    mine, number, total, square = own.peers, 0.0, 0.0, 0.0
    for each in peers:
        if each.slow.slow is None:  # of several slow replicas, each is compared with the others
            number += each.peers.number
            total += each.peers.sum
            square += each.peers.square
    if mine.number < LEAST or number < LEAST:
        return None
    mean, usual = mine.sum / mine.number, total / number
    spread = (mine.square / mine.number - mean * mean) / mine.number
    spread += (square / number - usual * usual) / number
    if mean - usual < DEVIATIONS * sqrt(max(spread, 0.0)):
        return None
    return Slow(exp(mean - usual), round(mine.number))


def _changed(own: _Moments) -> Slow | None:
    """Return how much longer requests take than in the past; ``None`` = too little is known."""
    if own.number < LEAST:
        return None
    mean = own.sum / own.number
    spread = (own.square / own.number - mean * mean) / own.number
    if mean < DEVIATIONS * sqrt(max(spread, 0.0)):
        return None
    return Slow(exp(mean), round(own.number))
