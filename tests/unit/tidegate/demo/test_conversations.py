"""Seeded multi-turn conversations."""

from __future__ import annotations

import pytest

from tidegate.demo.conversations import Shape, conversations, interleaved

SHAPE = Shape(sessions=3, turns=2, system_chars=200, turn_chars=100)


def transcript(seed: str) -> list[str]:
    """Return every prompt of a set, in order."""
    prompts = []
    sessions = conversations(SHAPE, seed)
    for _, number in interleaved(SHAPE, seed):
        prompts.append(sessions[number].ask())
        sessions[number].answered("yes")
    return prompts


def test_sessions_of_a_set_share_the_system_prompt() -> None:
    """All sessions start with the same system prompt and then differ."""
    first, second, third = (session.ask() for session in conversations(SHAPE, "a"))
    assert first[:200] == second[:200] == third[:200]
    assert len({first, second, third}) == 3


def test_a_turn_repeats_the_history() -> None:
    """Each prompt starts with the previous prompt and its answer."""
    session = conversations(SHAPE, "a")[0]
    first = session.ask()
    session.answered("of course")
    second = session.ask()
    assert second.startswith(first)
    assert "assistant: of course" in second[len(first) :]
    assert len(second) > len(first) + SHAPE.turn_chars


def test_turns_are_interleaved() -> None:
    """All sessions have their turn before any session has its next one."""
    order = list(interleaved(SHAPE, "a"))
    assert [turn for turn, _ in order] == [0, 0, 0, 1, 1, 1]
    assert sorted(number for _, number in order[:3]) == [0, 1, 2]
    assert len(order) == SHAPE.requests


def test_a_question_waits_for_its_answer() -> None:
    """A second question without an answer and an answer without a question raise."""
    session = conversations(SHAPE, "a")[0]
    with pytest.raises(RuntimeError, match="nothing was asked"):
        session.answered("what?")
    session.ask()
    with pytest.raises(RuntimeError, match="no answer yet"):
        session.ask()


def test_the_shape_tells_what_the_caches_must_hold() -> None:
    """``final_chars`` is about the total length of the prompts of the last turn."""
    last = transcript("a")[-SHAPE.sessions :]
    assert sum(map(len, last)) == pytest.approx(SHAPE.final_chars, rel=0.2)


@pytest.mark.parametrize("field", ["sessions", "turns", "system_chars", "turn_chars"])
def test_an_empty_shape_is_refused(field: str) -> None:
    """Each size is at least 1."""
    sizes = {"sessions": 1, "turns": 1, "system_chars": 1, "turn_chars": 1, field: 0}
    with pytest.raises(ValueError, match="at least 1"):
        Shape(**sizes)
