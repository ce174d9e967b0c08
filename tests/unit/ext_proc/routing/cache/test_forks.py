"""Blocks that several prompts continue."""

from __future__ import annotations

from ext_proc.routing.cache.forks import Forks
from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.values.pool import EndpointKey

A = EndpointKey("a", 1)


def test_turns_of_one_conversation_have_no_fork() -> None:
    """Each block of a growing conversation has one continuation."""
    index = PrefixIndex()
    for length in range(1, 20):
        index.insert(A, tuple(range(1, length + 1)), 0.0)
    assert index.table.branched_depth(tuple(range(1, 20)), 19) == 0


def test_what_two_more_prompts_continue_belongs_to_several() -> None:
    """A prefix is branched from its second continuation on, up to the matched depth."""
    index = PrefixIndex()
    index.insert(A, (1, 2, 3), 0.0)
    index.insert(A, (1, 2, 4), 0.0)
    index.insert(A, (1, 2, 5), 0.0)
    assert index.table.branched_depth((1, 2, 5, 6), 3) == 2
    assert index.table.branched_depth((1, 2, 9), 2) == 2
    assert index.table.branched_depth((1, 2, 9), 1) == 0
    assert index.table.branched_depth((7, 8), 2) == 0


def test_a_prompt_that_leaves_a_known_one_makes_the_fork() -> None:
    """Two questions about a document are known; the third one, or the document alone, forks."""
    index = PrefixIndex()
    index.insert(A, (1, 2), 0.0)
    index.insert(A, (1, 2, 3), 0.0)
    assert index.table.branched_depth((1, 2, 9), 2) == 2
    assert index.table.branched_depth((1, 2), 2) == 2


def test_a_conversation_makes_no_fork_where_only_older_turns_are_eligible() -> None:
    """Its own next turn is known on another replica, so the older one ends in no other prompt."""
    index = PrefixIndex()
    index.insert(A, (1, 2), 0.0)
    index.insert(EndpointKey("b", 1), (1, 2, 3), 0.0)
    assert index.table.branched_depth((1, 2, 3, 4), 2) == 0
    assert index.table.branched_depth((1, 2, 3, 4), 3) == 0


def test_the_deepest_fork_counts() -> None:
    """Of several forks on the way the deepest one is the branched depth."""
    forks = Forks()
    for parent, depth in ((1, 1), (1, 1), (3, 3), (3, 3), (4, 4)):
        forks.note(parent, depth)
    assert forks.branched((1, 2, 3, 4, 5), 5) == 3
    forks.forget(3)
    assert forks.branched((1, 2, 3, 4, 5), 5) == 1
    assert len(forks) == 2
