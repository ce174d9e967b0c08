"""Pure: seeded multi-turn conversations, the load on which cache affinity matters.

All conversations of a set share one system prompt; each turn repeats the whole history, as chat
clients do. The turns of the conversations are interleaved, so that a cache has to hold all of
them at once. One seed gives one set, word for word; two seeds have no block in common, so that a
second run starts as cold as the first.
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
    """The size of a set of conversations; characters count as the prompts' UTF-8 text."""

    sessions: int
    turns: int
    system_chars: int
    """Length of the system prompt that all sessions share."""
    turn_chars: int
    """Length of what the user says in one turn."""

    def __post_init__(self) -> None:
        """Refuse an empty shape."""
        if min(self.sessions, self.turns, self.system_chars, self.turn_chars) < 1:
            raise ValueError("sessions, turns and lengths are at least 1")

    @property
    def requests(self) -> int:
        """How many requests the set makes."""
        return self.sessions * self.turns

    @property
    def final_chars(self) -> int:
        """Characters of all histories at the end, without the answers."""
        return self.sessions * (self.system_chars + self.turns * self.turn_chars)


@dataclass(slots=True)
class Conversation:
    """One session: its history grows by the user's turns and by the answers."""

    session: str
    seed: str
    history: str
    turn_chars: int
    turn: int = 0
    awaiting: bool = field(default=False)

    def ask(self) -> str:
        """Return the prompt of the next turn: the whole history and the new question.

        Raises:
            RuntimeError: the last question has no answer yet.
        """
        if self.awaiting:
            raise RuntimeError(f"{self.session}: turn {self.turn} has no answer yet")
        self.turn += 1
        self.awaiting = True
        said = _text(f"{self.seed}/{self.session}/{self.turn}", self.turn_chars)
        self.history += f"{_PUNCTUATION}user: {said}"
        return self.history

    def answered(self, text: str) -> None:
        """Add the answer to the history.

        Raises:
            RuntimeError: nothing was asked.
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
    """Yield (turn, session number): all sessions' first turns, then all second ones.

    The order within a turn is shuffled per turn, else round robin over replicas could fall in
    step with the sessions and look like affinity.
    """
    rng = random.Random(f"{seed}/order")  # noqa: S311 - a reproducible order, no secret
    for turn in range(shape.turns):
        order = list(range(shape.sessions))
        rng.shuffle(order)
        for number in order:
            yield turn, number


def _text(seed: str, chars: int) -> str:
    rng = random.Random(seed)  # noqa: S311 - reproducible words, no secret
    # The seed leads: texts of two seeds differ from their first block on.
    words = [seed]
    length = len(seed)
    while length < chars:
        word = rng.choice(_WORDS)
        words.append(word)
        length += 1 + len(word)
    return " ".join(words)[:chars]
