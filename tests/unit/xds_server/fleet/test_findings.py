"""Pickers' findings combined."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from xds_server.fleet.findings import Place, combine, told_of
from xds_server.fleet.model.fleet import Fleet

SICK = ("ejected",)


def fleet(
    size: int = 4, *, quorum: int = 1, percent: int = 50, share: bool = True, draining: int = 0
) -> Fleet:
    """Return one pool of replicas r0, r1, ..., the first ``draining`` of which drain."""
    return Fleet.model_validate(
        {
            "pools": [
                {
                    "name": "llm",
                    "match": {"models": ["m"]},
                    "health": {"share": share, "quorum": quorum},
                    "outlier": {"max_ejection_percent": percent},
                    "endpoints": [
                        {"id": f"r{n}", "http": f"10.0.0.{n}:8000", "draining": n < draining}
                        for n in range(size)
                    ],
                }
            ]
        }
    )


def report(*numbers: int) -> dict[Place, tuple[str, ...]]:
    """Return what a picker finds that thinks these replicas sick."""
    return {Place("llm", f"r{n}", 1): SICK for n in numbers}


def told(made: Fleet, *reports: Any, before: Any = None) -> list[str]:
    """Return the names of those that everybody is told of."""
    return sorted(told_of(combine(made, {}, reports, before or {})).get("llm", {}))


def test_a_quorum_must_agree() -> None:
    """One of two pickers is not enough where two must say so; it is shown all the same."""
    made = fleet(quorum=2)
    assert told(made, report(1), report(2)) == []
    assert told(made, report(1, 3), report(1)) == ["r1"]
    (one, two) = combine(made, {}, [report(1, 2)], {})
    assert (one.endpoint, one.pickers, one.told) == ("r1", 1, False)
    assert two.endpoint == "r2"


def test_a_pool_that_does_not_share_is_not_looked_at() -> None:
    """Findings of pickers that have an older fleet change nothing."""
    assert combine(fleet(share=False), {}, [report(1)], {}) == ()


def test_another_incarnation_is_another_replica() -> None:
    """What was found of the process before says nothing of the one now."""
    assert combine(fleet(), {"r1": 5}, [report(1)], {}) == ()
    again = {Place("llm", "r1", 5): SICK}
    assert [one.endpoint for one in combine(fleet(), {"r1": 5}, [again], {})] == ["r1"]


def test_the_only_replica_is_never_told_sick() -> None:
    """Whatever the share: somebody must serve."""
    assert told(fleet(1, percent=100), report(0)) == []


def test_a_share_of_0_tells_of_nobody() -> None:
    """The operator switched ejection off."""
    assert told(fleet(percent=0), report(1)) == []


def test_who_is_told_already_stays_first() -> None:
    """A bound that is full does not make replicas change places."""
    made = fleet(4, percent=25)
    assert told(made, report(3), report(3, 1)) == ["r3"]
    assert told(made, report(3), report(3, 1), before={"llm": {"r1": SICK}}) == ["r1"]


def test_who_drains_counts_for_nothing() -> None:
    """Neither as a sick one nor as one who could serve instead."""
    assert told(fleet(3, draining=2, percent=100), report(0, 2)) == []


@given(
    size=st.integers(1, 12),
    percent=st.integers(0, 100),
    quorum=st.integers(1, 3),
    draining=st.integers(0, 12),
    reports=st.lists(st.sets(st.integers(0, 11)), max_size=5),
    before=st.sets(st.integers(0, 11)),
)
def test_a_pool_is_never_emptied(
    size: int,
    percent: int,
    quorum: int,
    draining: int,
    reports: list[set[int]],
    before: set[int],
) -> None:
    """Whatever pickers say, one replica that takes work is left, and the share is kept."""
    made = fleet(size, percent=percent, quorum=quorum, draining=draining)
    already = {"llm": {f"r{n}": SICK for n in before}}
    found = told(made, *(report(*numbers) for numbers in reports), before=already)
    able = max(0, size - draining)
    assert len(found) <= max(able * percent // 100, 1 if percent else 0)
    assert len(found) < able or not found
    for name in found:
        assert sum(int(name[1:]) in numbers for numbers in reports) >= quorum


@given(st.lists(st.sets(st.integers(0, 5)), min_size=1, max_size=4))
def test_what_only_one_picker_found_ends_with_it(reports: list[set[int]]) -> None:
    """Told before does not keep a replica sick that nobody names any more."""
    made = fleet(6, percent=100)
    before = told_of(combine(made, {}, [report(*numbers) for numbers in reports], {}))
    rest = [report(*numbers) for numbers in reports[1:]]
    left = told_of(combine(made, {}, rest, before)).get("llm", {})
    named = {f"r{n}" for numbers in reports[1:] for n in numbers}
    assert set(left) <= named
