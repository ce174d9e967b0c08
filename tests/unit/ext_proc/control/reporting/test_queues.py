"""Which variants are said to queue, and which only work."""

from __future__ import annotations

import heapq
import random
from typing import TYPE_CHECKING, Final

import pytest

from ext_proc.control.reporting.queues import EACH, LASTS_S, LEAST, Queues, Waiting, waiting_at
from ext_proc.routing.state.candidates import FRESH_S, Replica
from ext_proc.routing.state.ledger import Load
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_ONE: Final = frozenset[tuple[str, EndpointKey]]()


class Setting:
    """A pool whose replicas report what is set."""

    def __init__(self, *variants: str, models: frozenset[str] = frozenset()) -> None:
        self.keys = [EndpointKey(f"r{number}", 1) for number in range(len(variants))]
        endpoints = tuple(
            Endpoint(key, variant, http=f"10.0.0.{n}:8000", grpc=None)
            for n, (key, variant) in enumerate(zip(self.keys, variants, strict=True))
        )
        named = tuple(Variant(each, 1) for each in dict.fromkeys(variants))
        self.pools = {"llm": Pool("llm", variants=named, endpoints=endpoints, models=models)}
        self.members = {key: Replica(key, Load()) for key in self.keys}
        self.queues = Queues()

    def look(self, now: float, *waiting: float, running: float | None = 1.0) -> dict[str, Waiting]:
        """Let replicas report, look, and return those that queue."""
        for key, each in zip(self.keys, waiting, strict=True):
            self.members[key].observe([Reading(now, queued=each, running=running)])
        self.queues.look(now, self.pools, self.members, NO_ONE)
        return {key.id: each for (_, key), each in self.queues.found()}


def test_a_queue_is_named_within_ten_seconds() -> None:
    """Of a variant; each of its replicas where requests wait."""
    made = Setting("stable", "stable", "stable")
    seen = [now for now in range(12) if made.look(float(now), LEAST, 0.0, 5.0)]
    assert seen[0] == LASTS_S
    found = made.look(12.0, LEAST, 0.0, 5.0)
    assert {name: str(each) for name, each in found.items()} == {
        "r0": "40 requests wait, 1 run",
        "r2": "5 requests wait, 1 run",
    }


def test_a_queue_ends_once_half_of_it_is_done() -> None:
    """So that it is not named and forgotten by turns."""
    made = Setting("stable")
    for now in range(10):
        made.look(float(now), LEAST)
    assert made.look(10.0, 0.6 * LEAST)
    assert not made.look(11.0, 0.4 * LEAST)
    assert not made.look(12.0, LEAST)


@pytest.mark.parametrize(
    ("variants", "waiting", "running"),
    [
        (("a",), (LEAST - 1.0,), 1.0),
        (("a",) * 10, (EACH - 1.0,) * 10, 1.0),
        (("a", "b"), (LEAST - 1.0, LEAST - 1.0), 1.0),
        (("a",), (2.0 * LEAST - 1.0,), 8.0 * LEAST),
    ],
    ids=["few", "few each", "variants apart", "many run"],
)
def test_less_is_no_queue(
    variants: tuple[str, ...], waiting: tuple[float, ...], running: float
) -> None:
    """However long."""
    made = Setting(*variants)
    assert not any(made.look(float(now), *waiting, running=running) for now in range(60))


def test_replicas_that_drain_or_are_unwell_do_not_count() -> None:
    """They get no new requests; that they are unwell is said by itself."""
    made = Setting("stable", "stable")
    unwell = {("llm", made.keys[0])}
    for now in range(10):
        made.members[made.keys[0]].observe([Reading(float(now), queued=1000.0)])
        made.members[made.keys[1]].observe([Reading(float(now), queued=0.0)])
        made.queues.look(float(now), made.pools, made.members, unwell)
    assert not list(made.queues.found())


def reported(*readings: Reading, in_flight: int = 0) -> Replica:
    """Return a replica with these readings."""
    made = Replica(EndpointKey("r1", 1), Load())
    made.load.in_flight = in_flight
    made.observe(readings)
    return made


@pytest.mark.parametrize(
    ("replica", "found"),
    [
        (reported(), None),
        (reported(Reading(0.0, gpu_used=1.0)), None),
        (reported(Reading(-FRESH_S, queued=9.0)), None),
        (reported(Reading(0.0, queued=9.0)), Waiting(9.0, None)),
        (reported(Reading(0.0, queued=9.0, deferred=4.0, running=2.0)), Waiting(5.0, 2.0)),
        (reported(Reading(0.0, running=2.0), in_flight=5), Waiting(3.0, 2.0)),
        (
            reported(Reading(0.0, model="m", queued=1.0), Reading(0.0, queued=2.0)),
            Waiting(3.0, None),
        ),
        (reported(Reading(0.0, model="other", queued=9.0)), None),
    ],
    ids=["nothing", "another number", "old", "queued", "deferred", "running", "models", "other"],
)
def test_what_waits_is_read(replica: Replica, found: Waiting | None) -> None:
    """What is not known is None, never 0."""
    assert waiting_at(replica, frozenset({"m"}), 0.0) == found


def simulated(replicas: int, slots: int, mean_s: float, load: float) -> Iterator[list[int]]:
    """Yield in each of 900 seconds what waits at replicas with so many slots, by least load."""
    rng = random.Random(1)
    inside, ends = [0] * replicas, list[tuple[float, int]]()
    at, per_s = 0.0, load * replicas * slots / mean_s

    def begin(which: int, now: float) -> None:
        heapq.heappush(ends, (now + rng.expovariate(1.0 / mean_s), which))

    def end(until: float) -> None:
        while ends and ends[0][0] <= until:
            ended, which = heapq.heappop(ends)
            inside[which] -= 1
            if inside[which] >= slots:
                begin(which, ended)

    for second in range(900):
        while at < second:
            end(at)
            which = min(range(replicas), key=inside.__getitem__)
            inside[which] += 1
            if inside[which] <= slots:
                begin(which, at)
            at += rng.expovariate(per_s)
        end(float(second))
        yield [max(each - slots, 0) for each in inside]


@pytest.mark.parametrize(
    ("replicas", "slots", "mean_s"), [(1, 1, 0.05), (3, 1, 0.3), (1, 8, 2.0), (3, 16, 4.0)]
)
def test_a_pool_at_80_percent_of_what_it_can_do_does_not_queue(
    replicas: int, slots: int, mean_s: float
) -> None:
    """Arrivals and durations at random; at 130 percent it does, within a minute."""
    made = Setting(*["stable"] * replicas)
    seconds = enumerate(simulated(replicas, slots, mean_s, 0.8))
    assert not any(made.look(float(now), *each, running=float(slots)) for now, each in seconds)
    made = Setting(*["stable"] * replicas)
    seconds = enumerate(simulated(replicas, slots, mean_s, 1.3))
    found = (now for now, each in seconds if made.look(float(now), *each, running=float(slots)))
    assert next(found) < 60
