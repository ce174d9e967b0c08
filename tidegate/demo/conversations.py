"""Seeded multi-turn conversations, a load on which cache affinity matters. Pure functions.

All conversations of a set share one system prompt. Each turn repeats the whole history, as chat
clients do. The turns of the conversations are interleaved, so that a cache has to hold all
conversations at once. A seed determines the texts; the texts of two seeds share no block, so
each run starts with cold caches.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORDS: Final = (
    *("tide", "gate", "river", "harbour", "signal", "anchor", "lantern", "current"),
    *("ledger", "window", "beacon", "channel", "vessel", "compass", "meadow", "granite"),
    *("copper", "willow", "thunder", "velvet", "orchard", "saddle", "marble", "kernel"),
)
_PUNCTUATION: Final = "\n\n"


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a set of conversations; lengths are characters of UTF-8 text."""

    sessions: int
    turns: int
    system_chars: int
    """Length of the system prompt that all sessions share."""
    turn_chars: int
    """Length of the user's text in one turn."""

    def __post_init__(self) -> None:
        """Reject a size below 1.

        Raises:
            ValueError: A field is below 1.
        """
        if min(self.sessions, self.turns, self.system_chars, self.turn_chars) < 1:
            raise ValueError("sessions, turns and lengths are at least 1")

    @property
    def requests(self) -> int:
        """Number of requests of the set."""
        return self.sessions * self.turns

    @property
    def final_chars(self) -> int:
        """Characters of all final histories, without the answers."""
        return self.sessions * (self.system_chars + self.turns * self.turn_chars)


@dataclass(slots=True)
class Conversation:
    """One session; the user's turns and the answers are appended to its history."""

    session: str
    seed: str
    history: str
    turn_chars: int
    turn: int = 0
    awaiting: bool = field(default=False)

    def ask(self) -> str:
        """Return the prompt of the next turn: the whole history and the new question.

        Raises:
            RuntimeError: The previous question has no answer yet.
        """
        if self.awaiting:
            raise RuntimeError(f"{self.session}: turn {self.turn} has no answer yet")
        self.turn += 1
        self.awaiting = True
        said = _text(f"{self.seed}/{self.session}/{self.turn}", self.turn_chars)
        self.history += f"{_PUNCTUATION}user: {said}"
        return self.history

    def answered(self, text: str) -> None:
        """Append the answer to the history.

        Raises:
            RuntimeError: No question is open.
        """
        if not self.awaiting:
            raise RuntimeError(f"{self.session}: nothing was asked")
        self.awaiting = False
        self.history += f"{_PUNCTUATION}assistant: {text}"


def conversations(shape: Shape, seed: str) -> list[Conversation]:
    """Return the sessions of a set, before their first turn."""
    system = "system: " + _text(f"{seed}/system", shape.system_chars)
    return [
        Conversation(f"{seed}-{number}", seed, system, shape.turn_chars)
        for number in range(shape.sessions)
    ]


def interleaved(shape: Shape, seed: str) -> Iterator[tuple[int, int]]:
    """Yield (turn, session number): the first turns of all sessions, then all second turns.

    The order is shuffled in each turn; otherwise round robin could send each session to the same
    replica and look like affinity.
    """
    rng = random.Random(f"{seed}/order")  # noqa: S311 - a reproducible order, no secret
    for turn in range(shape.turns):
        order = list(range(shape.sessions))
        rng.shuffle(order)
        for number in order:
            yield turn, number


def _text(seed: str, chars: int) -> str:
    rng = random.Random(seed)  # noqa: S311 - reproducible words, no secret
    # The seed comes first, so the texts of two seeds differ from their first block on.
    words = [seed]
    length = len(seed)
    while length < chars:
        word = rng.choice(_WORDS)
        words.append(word)
        length += 1 + len(word)
    return " ".join(words)[:chars]
