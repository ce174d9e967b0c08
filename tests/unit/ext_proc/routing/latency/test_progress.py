"""Progress: which prompts replicas have computed, as their pages tell."""

from __future__ import annotations

import pytest

from ext_proc.routing.latency.model import COLD_TOKENS_PER_S, FleetLatencyModel
from ext_proc.routing.latency.progress import MAX_PENDING, MEMORY, Computed, Progress
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.ticket import Ticket


def sent(number: int, at: float, work: float = 100.0) -> Ticket:
    """Return a prompt that was sent."""
    return Ticket(number, EndpointKey("a", 1), "llm", work, at, prompted=True, drain_s=0.0)


def counted(at: float, first_tokens: float, seconds: float, running: float = 0.0) -> Reading:
    """Return the reading of an engine that counts first tokens."""
    return Reading(at, running=running, first_tokens=first_tokens, first_tokens_s=seconds)


def queue(at: float, queued: float, running: float = 1.0) -> Reading:
    """Return the reading of an engine that tells its queue only."""
    return Reading(at, queued=queued, running=running)


def ids(computed: Computed | None) -> list[int]:
    """Return the prompts that are done."""
    return [] if computed is None else [each.id for each in computed.tickets]


def test_the_oldest_prompts_are_those_that_the_engine_counted() -> None:
    """A counter that grew by two tells of two prompts, and their mean seconds."""
    progress = Progress()
    assert "a" not in progress.told
    assert progress.observe("a", [counted(0.0, 7.0, 70.0)], 0, 0) is None
    assert "a" in progress.told
    for number in (1, 2, 3):
        progress.sent(sent(number, float(number)))
    computed = progress.observe("a", [counted(4.0, 9.0, 73.0)], 3, 0)
    assert computed is not None
    assert (ids(computed), computed.mean_s) == ([1, 2], 1.5)
    assert progress.observe("a", [counted(5.0, 9.0, 73.0)], 1, 0) is None
    assert ids(progress.observe("a", [counted(6.0, 10.0, 75.0)], 1, 0)) == [3]


def test_prompts_that_ended_are_counted_before_older_ones() -> None:
    """A prompt that ended has had its first token; one that failed is not waited for."""
    progress = Progress()
    progress.observe("a", [counted(0.0, 0.0, 0.0)], 0, 0)
    for number in (1, 2, 3):
        progress.sent(sent(number, float(number)))
    progress.ended(sent(1, 1.0), 3.5, done=False)
    progress.ended(sent(3, 3.0), 3.5, done=True)
    assert ids(progress.observe("a", [counted(4.0, 1.0, 1.0)], 1, 0)) == [3]
    assert ids(progress.observe("a", [counted(5.0, 2.0, 2.0)], 1, 0)) == [2]


def test_a_counter_that_fell_begins_anew() -> None:
    """The seconds of a restarted engine are not compared with those from before."""
    progress = Progress()
    progress.observe("a", [counted(0.0, 9.0, 9.0)], 0, 0)
    progress.sent(sent(1, 1.0))
    assert progress.observe("a", [counted(2.0, 1.0, 1.0)], 1, 0) is None
    assert ids(progress.observe("a", [counted(3.0, 2.0, 2.0)], 1, 0)) == [1]


def test_prompts_of_other_clients_are_not_taken_for_ours() -> None:
    """Of an engine that serves twice as many requests, half of its first tokens are ours."""
    progress = Progress()
    progress.observe("a", [counted(0.0, 0.0, 0.0, running=2.0)], 1, 0)
    total = 0.0
    done = []
    for number in range(1, 201):
        progress.sent(sent(number, float(number)))
        total += 2.0
        computed = progress.observe("a", [counted(number + 0.5, total, total, 4.0)], 2, 0)
        done += ids(computed)
        assert computed is None or computed.mean_s is None
    assert done == list(range(1, 201))


def test_a_prompt_that_came_and_went_between_two_pages_tells_no_speed() -> None:
    """None of ours was seen in flight, so how many of the engine's were ours is not known."""
    progress = Progress()
    progress.observe("a", [counted(0.0, 0.0, 0.0, running=1.0)], 0, 0)
    progress.sent(sent(1, 0.1))
    progress.ended(sent(1, 0.1), 0.2, done=True)
    computed = progress.observe("a", [counted(1.0, 2.0, 2.0, running=1.0)], 0, 0)
    assert computed is not None
    assert (ids(computed), computed.mean_s) == ([1], None)


def test_a_queue_tells_that_the_others_have_left_it() -> None:
    """All but the latest of the queue, and one that may be under way, are done."""
    progress = Progress()
    progress.observe("a", [queue(0.0, 0.0, 0.0)], 0, 0)
    for number in range(1, 7):
        progress.sent(sent(number, 1.0))
    computed = progress.observe("a", [queue(2.0, 3.0, 3.0)], 6, 0)
    assert computed is not None
    assert (ids(computed), computed.busy_s) == ([1, 2], 0.0)
    computed = progress.observe("a", [queue(4.0, 1.0, 5.0)], 6, 0)
    assert computed is not None
    assert (ids(computed), computed.busy_s) == ([3, 4], 2.0)
    assert progress.observe("a", [Reading(5.0, queued=0.0, saturated=True)], 6, 0) is None


def test_a_page_that_tells_nothing_is_forgotten() -> None:
    """So is a replica that is removed; prompts are bounded."""
    progress = Progress()
    progress.observe("a", [queue(0.0, 0.0)], 0, 0)
    for number in range(MAX_PENDING + 10):
        progress.sent(sent(number, 1.0))
    computed = progress.observe("a", [queue(2.0, 0.0, MAX_PENDING)], MAX_PENDING, 0)
    assert len(ids(computed)) == MAX_PENDING - 1
    progress.observe("a", [Reading(3.0)], 0, 0)
    assert "a" not in progress.told
    progress.observe("a", [queue(4.0, 0.0)], 0, 0)
    progress.forget("a")
    assert "a" not in progress.told
    progress.ended(sent(1, 1.0), 5.0, done=True)


@pytest.mark.parametrize("true", [400.0, 2_000.0, 30_000.0])
@pytest.mark.parametrize("by", ["engines", "queues"])
def test_speeds_are_learned_from_pages_within_a_third(true: float, by: str) -> None:
    """Whether the engine counts first tokens or tells its queue, where durations tell nothing."""
    fleet = FleetLatencyModel()
    for number in range(int(2 * MEMORY)):
        work = 1_000.0 + 37.0 * (number % 40)
        if by == "engines":
            fleet.counted(1.0, work, 0.1 * (number % 3), 0.1 * (number % 3) + work / true)
        else:
            fleet.drained(1.0, work, work / true, 1)
        fleet.learn(1.0, work, 0.0, 1, 60.0 if number % 2 else 5.0)
    assert fleet.source == by
    assert 1.0 / fleet.seconds_per_token == pytest.approx(true, rel=1 / 3)
    before = fleet.seconds_per_token
    fleet.rescale(2.0, 0)
    assert fleet.seconds_per_token == pytest.approx(before / 2.0, rel=0.1)


def test_first_bytes_of_the_proxy_come_first() -> None:
    """What engines tell is not used while the proxy reports first bytes."""
    fleet = FleetLatencyModel()
    assert fleet.source == "default"
    for _ in range(40):
        fleet.answered(1.0, 4_000.0, 0.0, 4_000.0 / 2_000.0)
        fleet.answered(1.0, 1_000.0, 0.0, 1_000.0 / 2_000.0)
        fleet.counted(1.0, 2_000.0, 0.0, 20.0)
        fleet.drained(1.0, 2_000.0, 20.0, 1)
    assert fleet.source == "first-bytes"
    assert 1.0 / fleet.seconds_per_token < COLD_TOKENS_PER_S / 2
    assert 1.0 / fleet.seconds_per_token == pytest.approx(2_000.0, rel=1 / 3)
