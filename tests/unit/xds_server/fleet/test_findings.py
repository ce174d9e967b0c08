"""Combination of the pickers' findings."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from xds_server.fleet.findings import Place, combine, to_publish
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
    """Return a picker's findings that report these replicas as sick."""
    return {Place("llm", f"r{n}", 1): SICK for n in numbers}


def published(made: Fleet, *reports: Any, before: Any = None) -> list[str]:
    """Return the ids of the replicas to publish as sick."""
    return sorted(to_publish(combine(made, {}, reports, before or {})).get("llm", {}))


def test_a_quorum_must_agree() -> None:
    """Below the quorum a replica is shown, but not published."""
    made = fleet(quorum=2)
    assert published(made, report(1), report(2)) == []
    assert published(made, report(1, 3), report(1)) == ["r1"]
    (one, two) = combine(made, {}, [report(1, 2)], {})
    assert (one.endpoint, one.pickers, one.published) == ("r1", 1, False)
    assert two.endpoint == "r2"


def test_a_pool_that_does_not_share_has_no_sick_replicas() -> None:
    """Findings of pickers with an older fleet are ignored."""
    assert combine(fleet(share=False), {}, [report(1)], {}) == ()


def test_another_incarnation_is_another_replica() -> None:
    """A finding of an earlier incarnation does not apply to the current one."""
    assert combine(fleet(), {"r1": 5}, [report(1)], {}) == ()
    again = {Place("llm", "r1", 5): SICK}
    assert [one.endpoint for one in combine(fleet(), {"r1": 5}, [again], {})] == ["r1"]


def test_a_share_of_0_publishes_none() -> None:
    """With this share ejection is off."""
    assert published(fleet(percent=0), report(1)) == []


def test_published_replicas_take_precedence() -> None:
    """At the bound, published replicas are not replaced by others."""
    made = fleet(4, percent=25)
    assert published(made, report(3), report(3, 1)) == ["r3"]
    assert published(made, report(3), report(3, 1), before={"llm": {"r1": SICK}}) == ["r1"]


def test_draining_replicas_do_not_count() -> None:
    """Neither as sick nor as able to serve instead."""
    assert published(fleet(3, draining=2, percent=100), report(0, 2)) == []


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
    """Whatever pickers report, one replica that takes work is left, and the share is kept."""
    made = fleet(size, percent=percent, quorum=quorum, draining=draining)
    already = {"llm": {f"r{n}": SICK for n in before}}
    found = published(made, *(report(*numbers) for numbers in reports), before=already)
    able = max(0, size - draining)
    assert len(found) <= max(able * percent // 100, 1 if percent else 0)
    assert len(found) < able or not found
    for name in found:
        assert sum(int(name[1:]) in numbers for numbers in reports) >= quorum


@given(st.lists(st.sets(st.integers(0, 5)), min_size=1, max_size=4))
def test_what_only_one_picker_found_ends_with_it(reports: list[set[int]]) -> None:
    """A published replica that no picker reports any more is no longer published."""
    made = fleet(6, percent=100)
    before = to_publish(combine(made, {}, [report(*numbers) for numbers in reports], {}))
    rest = [report(*numbers) for numbers in reports[1:]]
    left = to_publish(combine(made, {}, rest, before)).get("llm", {})
    named = {f"r{n}" for numbers in reports[1:] for n in numbers}
    assert set(left) <= named
