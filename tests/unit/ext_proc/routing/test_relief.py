"""What a picker leaves out while its CPU does not suffice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.relief import (
    CALM,
    CHEAP,
    DOWN,
    FULL,
    MOST_UP,
    PASS,
    UP,
    USUAL,
    Relief,
)


def looked(relief, share, looks):
    """Take as many equal looks; return the levels after them."""
    levels = []
    for _ in range(looks):
        relief.look(share)
        levels.append(relief.level)
    return levels


def test_each_level_needs_several_full_looks():
    """One slow request is no lack of CPU."""
    relief = Relief()
    assert looked(relief, FULL, 2 * DOWN) == [*[USUAL] * (DOWN - 1), *[CHEAP] * DOWN, PASS]
    assert looked(relief, 1.0, 2 * DOWN)[-1] == PASS


def test_a_look_with_time_left_begins_anew():
    """The looks must follow one another."""
    relief = Relief()
    for _ in range(5):
        looked(relief, FULL, DOWN - 1)
        assert looked(relief, CALM, 1) == [USUAL]


def test_it_decides_as_usual_again_after_a_calm_while():
    """One level after the other."""
    relief = Relief()
    looked(relief, FULL, 2 * DOWN)
    assert looked(relief, 0.1, 2 * UP) == [*[PASS] * (UP - 1), *[CHEAP] * UP, USUAL]


def test_a_load_that_needs_relief_does_not_swing():
    """Each return that was too early doubles the calm that the next one needs."""
    relief, needed = Relief(), []
    for _ in range(7):
        looked(relief, FULL, DOWN)
        calm = 0
        while relief.level:
            relief.look(0.3)
            calm += 1
        needed.append(calm)
    assert needed == [UP, 2 * UP, 4 * UP, 8 * UP, MOST_UP, MOST_UP, MOST_UP]
    looked(relief, 0.3, MOST_UP)
    looked(relief, FULL, DOWN)
    assert looked(relief, 0.3, UP)[-1] == USUAL, "long after it, all begins anew"


@given(st.lists(st.floats(0.0, 1.5)))
def test_a_level_changes_by_one_and_only_for_its_reason(shares):
    """It rises after full looks and falls after calm ones."""
    relief = Relief()
    for at, share in enumerate(shares):
        before = relief.level
        changed = relief.look(share)
        assert changed == (relief.level != before)
        assert USUAL <= relief.level <= PASS
        if relief.level > before:
            assert all(each >= FULL for each in shares[at - DOWN + 1 : at + 1])
        if relief.level < before:
            assert all(each < CALM for each in shares[at - UP + 1 : at + 1])
