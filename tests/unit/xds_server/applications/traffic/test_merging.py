"""Counts of pickers add up to the truth, whatever happens to the reports on their way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.applications.traffic import picker_runs as module
from xds_server.applications.traffic.picker_runs import MAX_RUNS, YOUNG_S, Counted, PickerRuns
from xds_server.applications.traffic.request_counts import (
    NOTHING,
    RequestCounts,
    added,
    highest,
    since,
)

COUNT = st.integers(0, 9)
BUCKETED = st.dictionaries(st.integers(0, 4), st.integers(1, 9), max_size=3)
SUMS = st.builds(
    RequestCounts,
    COUNT,
    st.dictionaries(st.sampled_from(["error", "left"]), st.integers(1, 9), max_size=2),
    BUCKETED,
    BUCKETED,
    COUNT,
    COUNT,
)
KEY = ("llm", "stable")


@given(SUMS, SUMS, SUMS)
def test_addition_is_associative_and_commutative(
    one: RequestCounts, two: RequestCounts, three: RequestCounts
) -> None:
    """The order in which pickers report must not matter."""
    assert added(one, two) == added(two, one)
    assert added(added(one, two), three) == added(one, added(two, three))
    assert added(one, NOTHING) == one


@given(SUMS, SUMS, SUMS)
def test_the_higher_state_is_associative_commutative_and_idempotent(
    one: RequestCounts, two: RequestCounts, three: RequestCounts
) -> None:
    """A report may come twice, or after a later one."""
    assert highest(one, two) == highest(two, one)
    assert highest(highest(one, two), three) == highest(one, highest(two, three))
    assert highest(one, one) == one


@given(SUMS, SUMS)
def test_a_difference_is_what_was_added(before: RequestCounts, more: RequestCounts) -> None:
    """What a report adds to the one before is what happened between them."""
    assert since(added(before, more), before) == more


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["p1", "p1.w1", "p2"]),
        st.sampled_from(["work", "report", "again", "late", "restart"]),
        SUMS,
    ),
    max_size=60,
)


@given(STEPS)
def test_sums_equal_the_truth_under_restarts_repeats_and_reordering(
    steps: list[tuple[str, str, RequestCounts]],
) -> None:
    """Nothing that was reported is lost, and nothing is counted twice."""
    book, truth, found = PickerRuns(), NOTHING, NOTHING
    totals: dict[str, RequestCounts] = {}
    sent: dict[str, list[Counted]] = {}
    run = dict.fromkeys(["p1", "p1.w1", "p2"], 0)
    numbers = iter(range(1, 10_000))

    def report(picker: str) -> Counted:
        run[picker] = run[picker] or next(numbers)
        return Counted(run[picker], 1.0, {KEY: totals.get(picker, NOTHING)}, {})

    def take(picker: str, counted: Counted) -> None:
        nonlocal found
        found = added(found, book.take(picker, counted, 0.0).variants.get(KEY, NOTHING))

    for picker, what, sums in steps:
        if what == "work":
            totals[picker] = added(totals.get(picker, NOTHING), sums)
            truth = added(truth, sums)
        elif what == "report":
            made = report(picker)
            sent.setdefault(picker, []).append(made)
            take(picker, made)
        elif what == "restart":  # it reports before it stops, as a drained picker does
            take(picker, report(picker))
            totals[picker], run[picker], sent[picker] = NOTHING, 0, []
        elif sent.get(picker):
            take(picker, sent[picker][-1 if what == "again" else 0])
    for picker in run:
        take(picker, report(picker))
    assert found == truth


def test_a_life_that_began_long_ago_is_only_a_basis() -> None:
    """A restarted control server must not show a day's requests as those of this minute."""
    book = PickerRuns()
    old = Counted(7, YOUNG_S + 1, {KEY: RequestCounts(1000)}, {KEY: RequestCounts(1000)})
    assert book.take("p", old, 0.0).variants == {}
    more = book.take("p", Counted(7, YOUNG_S + 6, {KEY: RequestCounts(1010)}, {}), 5.0)
    assert more.variants == {KEY: RequestCounts(10)}
    assert more.over_s == 5.0


def test_a_new_life_counts_as_a_whole() -> None:
    """A picker that has just started begins at 0, also under the id of an earlier one."""
    book = PickerRuns()
    book.take("p", Counted(1, 1.0, {KEY: RequestCounts(50)}, {}), 0.0)
    assert book.take("p", Counted(2, 3.0, {KEY: RequestCounts(4)}, {}), 9.0).variants == {
        KEY: RequestCounts(4)
    }


def test_lives_and_series_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that invents runs, names and pickers costs bounded memory."""
    monkeypatch.setattr(module, "MAX_SERIES", 6)
    monkeypatch.setattr(module, "MAX_PICKERS", 3)
    book = PickerRuns()
    for number in range(20):
        sums = {("llm", f"v{each}"): RequestCounts(1) for each in range(4)}
        book.take(f"p{number % 5}", Counted(number, 0.0, sums, {}), 0.0)
        assert book.series <= 6
    assert len(book._pickers) == 3
    assert all(len(known) <= MAX_RUNS for known in book._pickers.values())
