"""auto prices replicas in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.latency.pending_first_bytes import GRACE_S
from ext_proc.routing.policies.auto import ALPHA, BETA, Auto, barrier_s
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.ticket import Ticket

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.candidates import Candidate, SchedulingContext

PER_TOKEN = 1 / 8000


def test_an_idle_replica_costs_the_uncached_prompt(
    context: Callable[..., SchedulingContext],
) -> None:
    """Cached tokens are free; the others cost what they take, as no request waits for them."""
    made = context(2, tokens=640.0, blocks=10, matched=[0, 9])
    assert Auto().prices(made) == pytest.approx([640 * PER_TOKEN, 64 * PER_TOKEN])
    assert Auto().picked(made, 1) == "prefix"
    assert Auto().picked(made, 0) == "spill"


def test_a_miss_costs_others_as_far_as_the_fleet_is_busy(
    context: Callable[..., SchedulingContext],
) -> None:
    """A replica is busy while its clock is ahead."""
    made = context(4, tokens=640.0, now=5.0)
    for busy, candidate in enumerate(made.candidates[1:], 1):
        candidate.replica.busy_until = 6.0
        candidate.load.work = 1e9
        assert Auto().prices(made)[0] == pytest.approx((1 + ALPHA * busy / 4) * 640 * PER_TOKEN)


def test_affinity_ends_where_waiting_costs_more(context: Callable[..., SchedulingContext]) -> None:
    """The holder wins while its drain is less than the total cost of a second prefill."""
    made = context(2, tokens=8000.0, blocks=125, matched=[125, 0], work=[1e9, 0.0])
    holder = made.candidates[0].replica
    holder.load.work = 1e9
    gain = (1 + ALPHA / 2) * 8000 * PER_TOKEN
    for drain, first in ((gain - 0.1, 0), (gain + 0.1, 1)):
        holder.busy_until = drain
        prices = Auto().prices(made)
        assert prices.index(min(prices)) == first


def test_work_in_flight_bounds_the_clock(context: Callable[..., SchedulingContext]) -> None:
    """The drain is bounded by the work in flight, at any state of the virtual clock."""
    made = context(2, tokens=8.0)
    made.candidates[0].replica.busy_until = 100.0
    made.candidates[0].load.work = 800.0
    prices = Auto().prices(made)
    assert prices[0] - prices[1] == pytest.approx(0.1)


def test_a_slow_replica_costs_more(context: Callable[..., SchedulingContext]) -> None:
    """Its slowness multiplies the cost of computing the prompt."""
    made = context(2, tokens=800.0)
    made.candidates[0].latency_model.slowness = 2.0
    prices = Auto().prices(made)
    assert prices[0] == pytest.approx(2 * prices[1])


def test_a_widely_shared_prefix_gives_no_preference(
    context: Callable[..., SchedulingContext],
) -> None:
    """Widely shared blocks, if at most half of the prompt, count as held by all replicas."""
    made = context(2, tokens=640.0, blocks=10, shared=5, matched=[5, 0])
    assert len(set(Auto().prices(made))) == 1
    assert len(set(Auto().prices(made.changed(shared=6, matched=[6, 0])))) == 2


def test_a_copy_of_what_several_prompts_share_costs_its_prefill_only(
    context: Callable[..., SchedulingContext],
) -> None:
    """The cost of a miss to other requests counts for the conversation's own blocks only."""
    made = context(2, tokens=640.0, blocks=10, branched=8, matched=[8, 0], now=5.0)
    for candidate in made.candidates:  # busy, without work
        candidate.replica.busy_until = 6.0
    prices = Auto().prices(made)
    assert prices[0] == pytest.approx((1 + ALPHA) * 128 * PER_TOKEN)
    assert prices[1] - prices[0] == pytest.approx(512 * PER_TOKEN)


def test_a_full_cache_repels_while_its_reading_is_fresh(
    context: Callable[..., SchedulingContext],
) -> None:
    """The barrier rises with the cache's use; a stale reading is ignored."""
    made = context(2, tokens=8.0, now=10.0)
    made.candidates[0].replica.observe([Reading(at=9.0, kv_used=0.9)])
    prices = Auto().prices(made)
    assert prices[0] - prices[1] == pytest.approx(barrier_s(0.9)) == pytest.approx(0.6)
    later = made.changed(now=11.0)
    assert len(set(Auto().prices(later))) == 1
    assert barrier_s(2.0) == pytest.approx(barrier_s(0.9995))
    assert barrier_s(0.5) == 0.0


def test_the_queue_of_others_costs_their_work(context: Callable[..., SchedulingContext]) -> None:
    """Queued requests of other pickers count as requests of the usual length."""
    made = context(2, tokens=8.0, pending=[3.0, 0.0])
    made.latency_model.learn(1.0, 800.0, 0.0, 0, 1.0)
    prices = Auto().prices(made)
    stalled = BETA * 2.0 * 8.0 * made.latency_model.seconds_per_token  # twice the mean of pending
    expected = (
        3 * (800 * made.latency_model.seconds_per_token + made.latency_model.delta_s) + stalled
    )
    assert prices[0] - prices[1] == pytest.approx(expected)


def pending_tickets(candidate: Candidate, work: float, expected_s: float = 0.0) -> None:
    """Give a replica a request that is pending its first byte since second 0."""
    candidate.replica.first_bytes.note(Ticket(1, candidate.key, "llm", work, 0.0), expected_s, 0.0)


def test_a_long_prompt_avoids_replicas_with_many_answers(
    context: Callable[..., SchedulingContext],
) -> None:
    """A long prompt accepts a longer drain to delay fewer answers; a short one does not."""
    for tokens, first in ((64_000.0, 1), (64.0, 0)):
        made = context(2, tokens=tokens, pending=[16.0, 2.0], work=[1e9, 1e9])
        for candidate, drain in zip(made.candidates, (0.0, 0.5), strict=True):
            candidate.load.in_flight, candidate.load.work = 16, 1e9
            candidate.replica.busy_until = drain
        prices = Auto().prices(made)
        assert prices.index(min(prices)) == first


def test_a_late_replica_costs_its_pending_work(context: Callable[..., SchedulingContext]) -> None:
    """Its pending work counts as drain, at the speed estimated from the pending first byte."""
    made = context(2, tokens=8000.0, now=11.5)
    made.latency_model.note_first_byte(11.0)
    pending_tickets(made.candidates[0], 16_000.0, expected_s=2.0)
    late, other = Auto().prices(made)
    factor = (11.5 - GRACE_S) / 2.0
    assert late == pytest.approx(factor * (other + 2.0))


def test_lateness_counts_only_with_first_bytes_of_others(
    context: Callable[..., SchedulingContext],
) -> None:
    """Without known first bytes no replica is late."""
    made = context(2, tokens=8000.0, now=100.0)
    pending_tickets(made.candidates[0], 16_000.0)
    late, other = Auto().prices(made)
    assert late == other


SEATS = st.lists(
    st.tuples(
        st.integers(0, 20),
        st.floats(0, 60),
        st.integers(0, 8),
        st.floats(0.1, 10),
        st.floats(0, 1),
        st.none() | st.floats(0, 100),
    ),
    min_size=1,
    max_size=6,
)


@given(
    rows=SEATS,
    tokens=st.none() | st.floats(1, 1e5),
    shared=st.integers(0, 8),
    branched=st.integers(0, 8),
)
def test_the_parts_make_the_price(
    context: Callable[..., SchedulingContext],
    rows: list[tuple[int, float, int, float, float, float | None]],
    tokens: float | None,
    shared: int,
    branched: int,
) -> None:
    """Each price is finite, above 0, and the sum of its non-negative terms."""
    made = context(
        len(rows),
        tokens=tokens,
        blocks=8,
        shared=shared,
        branched=branched,
        matched=[row[2] for row in rows],
        pending=[float(row[0]) for row in rows],
        now=20.0,
    )
    made.latency_model.note_first_byte(1.0)
    for candidate, row in zip(made.candidates, rows, strict=True):
        if row[5] is not None:
            pending_tickets(candidate, 1e3 * row[5], row[5])
        candidate.replica.busy_until = 19.0 + row[1]
        candidate.load.work = 1e4 * row[0]
        candidate.latency_model.slowness = row[3]
        candidate.replica.observe([Reading(at=19.5, kv_used=row[4])])
    for index, price in enumerate(Auto().prices(made)):
        parts = Auto().parts(made, index)
        assert price > 0
        assert min(parts.values()) >= 0
        assert price == pytest.approx(sum(parts.values()))


ROW = st.tuples(st.integers(0, 20), st.floats(0, 60), st.integers(0, 8), st.floats(0, 1))


@given(
    row=ROW,
    more=st.sampled_from(["requests", "drain", "uncached", "memory"]),
    tokens=st.floats(512, 1e5),
    shared=st.integers(0, 8),
    branched=st.integers(0, 8),
)
def test_more_of_anything_is_never_cheaper(
    context: Callable[..., SchedulingContext],
    row: tuple[int, float, int, float],
    more: str,
    tokens: float,
    shared: int,
    branched: int,
) -> None:
    """More requests, a longer queue, fewer cached blocks or a fuller cache never lower a price."""
    pending, drain, matched, used = row
    worse = {
        "requests": (pending + 1, drain, matched, used),
        "drain": (pending, drain + 1.0, matched, used),
        "uncached": (pending, drain, max(0, matched - 1), used),
        "memory": (pending, drain, matched, min(1.0, used + 0.1)),
    }[more]
    made = context(
        2,
        tokens=tokens,
        blocks=8,
        shared=shared,
        branched=branched,
        matched=[row[2], worse[2]],
        pending=[float(row[0]), float(worse[0])],
    )
    for candidate, (count, busy, _, kv_used) in zip(made.candidates, (row, worse), strict=True):
        candidate.replica.busy_until = busy
        candidate.load.in_flight, candidate.load.work = count, 1e9
        candidate.replica.observe([Reading(at=0.0, kv_used=kv_used)])
    prices = Auto().prices(made)
    assert prices[1] >= prices[0] - 1e-9
