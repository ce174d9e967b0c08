"""In which order an engine's batches are believed. Pure.

vLLM numbers its batches from 0 and, where it has a replay address, sends again those of its last
10,000 that are asked for. A subscriber that came late, was cut off or was too slow has gaps.

Rules:

1. A batch is applied only directly behind the one before it, or as the first after nothing.
2. The story is *complete* while it was followed from batch 0, or from a batch that cleared the
   cache.
3. A live batch that is not younger than the live one before it is another process's: all is
   forgotten, and its story begins. A batch that a replay has told already is passed over.
4. A gap asks for a replay from the first missing batch. Where that does not close it, all is
   forgotten, and the story goes on from where it can, not complete.
5. A lost connection forgets all: nobody knows whether the next batch is of the same process.
"""

from __future__ import annotations

from enum import Enum, auto


class Step(Enum):
    """What to do with a batch."""

    APPLY = auto()
    SKIP = auto()
    ASK = auto()
    """Batches are missing before it: ask for them, then offer it again."""


class Sequence:
    """One engine's story.

    Args:
        can_ask: There is a replay address.
    """

    def __init__(self, *, can_ask: bool) -> None:
        self._can_ask = can_ask
        self._live: int | None = None
        """The youngest live batch."""
        self._next: int | None = None
        """The batch that must come next; ``None`` = any."""
        self.complete = False
        self.forget = False
        """Whether all that was told must be forgotten before the next batch; the caller resets."""
        self.gaps = 0
        self.restarts = 0

    @property
    def missing(self) -> int:
        """Return the first batch that a replay should bring."""
        return self._next or 0

    def lost(self) -> None:
        """Note that the connection was lost."""
        self._reset()
        self._live = None

    def live(self, number: int) -> Step:
        """Say what to do with a batch that was just published."""
        if self._live is not None and number <= self._live:
            self.restarts += 1
            self._reset()
            self._live = None
        step = self._step(number)
        if step is not Step.ASK:
            self._live = number
        return step

    def replayed(self, number: int, *, first: bool) -> Step:
        """Say what to do with a batch of a replay; ``first`` = of all that it brought.

        Behind the first, ``ASK`` means that batches were lost on the way: ask for them again.
        """
        step = self._step(number)
        if step is Step.ASK and first:
            # It has nothing older: what is missing is gone for good.
            self._skip_to(number)
            step = self._step(number)
        return step

    def replay_ended(self, *, empty: bool) -> None:
        """Note that a replay was told to its end; ``empty`` = it had no batch at all."""
        if empty and self._next is None:
            self._next = 0
            self.complete = True

    def give_up(self, number: int) -> None:
        """Note that what is missing before a live batch cannot be had; offer it again."""
        self._skip_to(number)

    def cleared(self) -> None:
        """Note that a batch emptied the cache: from here on all is known."""
        self.complete = True

    def unreadable(self) -> None:
        """Note that the batch just taken could not be read."""
        number = self._next
        self._reset()
        self._next = number

    def _step(self, number: int) -> Step:
        if self._next is None:
            if number == 0:
                self.complete = True
            elif self._can_ask:
                return Step.ASK
        elif number < self._next:
            return Step.SKIP
        elif number > self._next:
            if self._can_ask:
                return Step.ASK
            self._skip_to(number)
        self._next = number + 1
        return Step.APPLY

    def _skip_to(self, number: int) -> None:
        if self._next is not None:
            self.gaps += 1
        self._reset()
        self._next = number

    def _reset(self) -> None:
        self.forget = True
        self.complete = False
        self._next = None
