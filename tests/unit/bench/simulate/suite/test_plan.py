"""Coverage of the suites."""

from __future__ import annotations

import pytest

from bench.simulate.schedulers.registry import names
from bench.simulate.suite.plan import AUTO, SUITES, full, narrowed


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


def test_a_narrowed_suite_keeps_its_baseline() -> None:
    """Comparisons need ``auto``; arms keep what they have of the named policies."""
    chapters = narrowed(full(), ["llm-d"])
    assert [each.name for each in chapters] == [each.name for each in full()]
    assert all(each.arms[0].policies in {(AUTO, "llm-d"), (AUTO,)} for each in chapters)
    assert "llm-d" in chapters[0].arms[0].policies
