"""Coverage of the suites."""

from __future__ import annotations

import pytest

from bench.simulate.generators import GENERATORS
from bench.simulate.schedulers.registry import OTHERS, names
from bench.simulate.suite.plan import AUTO, SUITES, everything, full, narrowed


@pytest.mark.parametrize("name", SUITES)
def test_every_chapter_can_be_compared(name: str) -> None:
    """Each first arm runs auto, all policies exist, and names are unique."""
    chapters = SUITES[name]()
    assert len({each.name for each in chapters}) == len(chapters)
    for chapter in chapters:
        assert AUTO in chapter.arms[0].policies
        assert {policy for arm in chapter.arms for policy in arm.policies} <= set(names())
        if chapter.judged:
            assert "probe" in chapter.arms[0].policies


def test_both_traces_see_every_rule() -> None:
    """Both traces run all policies of the picker, all published rules, probe and oracle."""
    assert set(OTHERS) < set(everything()) < set(names())
    traces = [each for each in full() if "." in each.traffic.source and each.judged]
    assert len(traces) == 2
    assert all(each.arms[0].policies == everything() for each in traces)


def test_all_generators_and_sizes_are_there() -> None:
    """The suite has four generators, and fleets of 8, 100 and 1,000 replicas."""
    chapters = full()
    assert set(GENERATORS) <= {each.traffic.source for each in chapters}
    assert {each.arms[0].scenario.replicas for each in chapters} == {8, 100, 1000}


def test_a_narrowed_suite_keeps_its_baseline() -> None:
    """Comparisons need ``auto``; arms keep what they have of the named policies."""
    chapters = narrowed(full(), ["llm-d"])
    assert [each.name for each in chapters] == [each.name for each in full()]
    assert all(each.arms[0].policies in {(AUTO, "llm-d"), (AUTO,)} for each in chapters)
    assert "llm-d" in chapters[0].arms[0].policies
