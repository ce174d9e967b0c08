"""Latches: the hysteresis of conditions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.health.latch import MAX_WHY_CHARS, Latch
from ext_proc.routing.values.pool import EndpointKey

R1, R2 = EndpointKey("r1", 1), EndpointKey("r2", 1)


def test_bad_results_in_a_row_set_it_and_one_good_result_ends_it():
    """A single bad result between two good ones does not set it."""
    latch = Latch("bad", 2)
    assert not latch.bad("p", R1)
    assert not latch.good("p", R1)
    assert not latch.bad("p", R1)
    assert latch.bad("p", R1, "why")
    assert (list(latch.of("p")), latch.why("p", R1)) == ([R1], "why")
    assert not latch.bad("p", R1, "since then"), "it is set already"
    assert latch.why("p", R1) == "since then"
    assert latch.good("p", R1)
    assert (list(latch.of("p")), latch.why("p", R1)) == ([], "")


def test_removed_replicas_are_dropped():
    """A replica that is not kept loses its condition; the count of one that is kept stays."""
    latch = Latch("bad", 2)
    for key in (R1, R1, R2):
        latch.bad("p", key)
    latch.keep({("p", R2)})
    assert list(latch.of("p")) == []
    assert latch.bad("p", R2)


def test_the_reason_is_bounded():
    """A long reason of a replica is cut."""
    latch = Latch("bad", 1)
    latch.bad("p", R1, "x" * 10_000)
    assert len(latch.why("p", R1)) == MAX_WHY_CHARS


@given(st.integers(1, 4), st.lists(st.booleans(), max_size=30))
def test_it_is_set_exactly_after_so_many_bad_results(after, answers):
    """It is set if and only if the last ``after`` results, or more, were bad."""
    latch, row = Latch("bad", after), 0
    for good in answers:
        row = 0 if good else row + 1
        changed = latch.good("p", R1) if good else latch.bad("p", R1)
        assert (R1 in latch.of("p")) == (row >= after)
        assert not changed or row in {0, after}
