"""Passes of the last minute, from sums that pickers report."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xds_server.applications.traffic.passes import MAX_PICKERS, MAX_REASONS, SLOT_S, SLOTS, PassBook


class Clock:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return monotonic seconds."""
        return self.now


def test_what_was_counted_before_the_first_report_is_not_recent() -> None:
    """The picker may have run for weeks."""
    book = PassBook(Clock())
    book.take("p1", {"no-body": 1000})
    assert book.recent() == {}
    book.take("p1", {"no-body": 1003, "too-late": 2})
    assert book.recent() == {"no-body": 3, "too-late": 2}


def test_a_restarted_picker_counts_anew() -> None:
    """Its sums begin at 0, and those of before remain for their minute."""
    book = PassBook(Clock())
    for sums in ({}, {"no-body": 5}, {"no-body": 2}):
        book.take("p1", sums)
    assert book.recent() == {"no-body": 7}


def test_passes_are_forgotten_after_a_minute() -> None:
    """Not before."""
    clock = Clock()
    book = PassBook(clock)
    book.take("p1", {})
    book.take("p1", {"no-body": 5})
    clock.now += SLOT_S * (SLOTS - 1)
    assert book.recent() == {"no-body": 5}
    clock.now += SLOT_S
    assert book.recent() == {}


def test_pickers_and_reasons_are_bounded() -> None:
    """Whatever they report."""
    book = PassBook(Clock())
    for number in range(MAX_PICKERS + 5):
        book.take(f"p{number}", {})
        book.take(f"p{number}", {f"r{number}": 1})
    assert len(book.recent()) == MAX_REASONS
    assert len(book._known) == MAX_PICKERS


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b"]), st.integers(0, 5), st.floats(0.0, 30.0), st.booleans()
        ),
        max_size=40,
    )
)
def test_each_pass_of_the_last_minute_counts_once(
    steps: list[tuple[str, int, float, bool]],
) -> None:
    """Whatever is reported again, and whenever a picker restarts."""
    clock = Clock()
    book = PassBook(clock)
    sums = {"a": 0, "b": 0}
    passed: list[tuple[float, int]] = []
    for picker in sums:
        book.take(picker, {})
    for picker, more, wait_s, repeats in steps:
        clock.now += wait_s
        sums[picker] += more
        passed.append((clock.now, more))
        for _ in range(1 + repeats):
            book.take(picker, {"no-body": sums[picker]})
    first = clock.now // SLOT_S - SLOTS + 1
    recent = sum(more for at, more in passed if at // SLOT_S >= first)
    assert sum(book.recent().values()) == recent
