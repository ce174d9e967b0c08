"""Hysteresis of named conditions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.health.latch import MAX_WHY_CHARS, Latch
from ext_proc.routing.values.pool import EndpointKey

R1, R2 = EndpointKey("r1", 1), EndpointKey("r2", 1)


def test_noes_in_a_row_set_it_and_one_yes_ends_it():
    """A single no between two yeses is no reason."""
    latch = Latch("bad", 2)
    assert not latch.no("p", R1)
    assert not latch.yes("p", R1)
    assert not latch.no("p", R1)
    assert latch.no("p", R1, "why")
    assert (list(latch.of("p")), latch.why("p", R1)) == ([R1], "why")
    assert not latch.no("p", R1, "since then"), "it is set already"
    assert latch.why("p", R1) == "since then"
    assert latch.yes("p", R1)
    assert (list(latch.of("p")), latch.why("p", R1)) == ([], "")


def test_who_left_is_forgotten():
    """With its count, so that one who comes back begins anew."""
    latch = Latch("bad", 2)
    for key in (R1, R1, R2):
        latch.no("p", key)
    latch.keep({("p", R2)})
    assert list(latch.of("p")) == []
    assert latch.no("p", R2)


def test_what_a_replica_says_is_bounded():
    """Its reason may be a page."""
    latch = Latch("bad", 1)
    latch.no("p", R1, "x" * 10_000)
    assert len(latch.why("p", R1)) == MAX_WHY_CHARS


@given(st.integers(1, 4), st.lists(st.booleans(), max_size=30))
def test_it_holds_exactly_after_so_many_noes(after, answers):
    """By the definition: the last ``after`` answers, or more since then, were all no."""
    latch, row = Latch("bad", after), 0
    for yes in answers:
        row = 0 if yes else row + 1
        changed = latch.yes("p", R1) if yes else latch.no("p", R1)
        assert (R1 in latch.of("p")) == (row >= after)
        assert not changed or row in {0, after}
