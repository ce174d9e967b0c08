"""Decides in which order an engine's batches are applied. Pure.

vLLM numbers its batches from 0. With a replay address it resends the requested ones of its last
10,000. A subscriber that started late, lost its connection or was too slow has gaps.

Rules:

1. A batch is applied only if it directly follows the last applied one, or if none was applied yet.
2. The history is *complete* if it was followed from batch 0, or from a batch that cleared the
   cache; one that a replay delivers is complete at the replay's end, or at the next live batch.
3. A live batch whose number is not above that of the last live batch comes from a new process:
   everything is discarded, and a new history begins. A batch that a replay has delivered already
   is ignored.
4. A gap requests a replay from the first missing batch. If that does not close it, everything is
   discarded, and an incomplete history continues from the next available batch.
5. A lost connection discards everything: the next batch may come from another process.
"""

from __future__ import annotations

from enum import Enum, auto


class Step(Enum):
    """Action for a batch."""

    APPLY = auto()
    SKIP = auto()
    REPLAY = auto()
    """Earlier batches are missing: request a replay, then pass the batch again."""


class Sequence:
    """One engine's history of batches.

    Args:
        can_replay: The engine has a replay address.
    """

    def __init__(self, *, can_replay: bool) -> None:
        self._can_replay = can_replay
        self._live: int | None = None
        """Number of the latest live batch."""
        self._next: int | None = None
        """Number of the batch that must come next; ``None`` = any."""
        self._whole = False
        """A replay has delivered batch 0, or a batch that cleared the cache."""
        self._replaying = False
        """The batch just taken is one of a replay."""
        self.complete = False
        self.forget = False
        """Everything must be discarded before the next batch; the caller resets this."""
        self.gaps = 0
        self.restarts = 0

    @property
    def waits(self) -> bool:
        """Whether no batch has come since the beginning, or since everything was discarded."""
        return self._next is None

    @property
    def missing(self) -> int:
        """Return the first batch that a replay should deliver."""
        return self._next or 0

    def lost(self) -> None:
        """Record that the connection was lost."""
        self._reset()
        self._live = None

    def live(self, number: int) -> Step:
        """Return the action for a batch that was just published."""
        self._replaying = False
        if self._live is not None and number <= self._live:
            self.restarts += 1
            self._reset()
            self._live = None
        step = self._step(number)
        if step is not Step.REPLAY:
            self._live = number
            self.complete |= self._whole or (step is Step.APPLY and number == 0)
        return step

    def replayed(self, number: int, *, first: bool) -> Step:
        """Return the action for a batch of a replay; ``first`` = the first of this replay.

        After the first, ``REPLAY`` means that batches were lost in transit: request them again.
        """
        self._replaying = True
        step = self._step(number)
        if step is Step.REPLAY and first:
            # The engine has nothing older: the missing batches are lost for good.
            self._skip_to(number)
            step = self._step(number)
        self._whole |= step is Step.APPLY and number == 0
        return step

    def replay_ended(self, *, empty: bool) -> None:
        """Record that a replay is complete; ``empty`` = it had no batch at all."""
        if empty and self._next is None:
            self._next = 0
            self.complete = True
        self.complete |= self._whole

    def give_up(self, number: int) -> None:
        """Skip the batches missing before a live batch; pass the live batch again."""
        self._skip_to(number)

    def cleared(self) -> None:
        """Record that the batch just taken emptied the cache: from there on it is known."""
        if self._replaying:
            self._whole = True  # later batches of the replay have more (rule 2)
        else:
            self.complete = True

    def unreadable(self) -> None:
        """Record that the batch just taken could not be read."""
        number = self._next
        self._reset()
        self._next = number

    def _step(self, number: int) -> Step:
        if self._next is None:
            if number and self._can_replay:
                return Step.REPLAY
        elif number < self._next:
            return Step.SKIP
        elif number > self._next:
            if self._can_replay:
                return Step.REPLAY
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
        self.complete = self._whole = False
        self._next = None
