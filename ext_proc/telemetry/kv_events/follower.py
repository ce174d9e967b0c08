"""Applies one engine's published batches, in the order and with the gaps in which they arrive.

No I/O: ``subscribe`` reads the sockets and requests replays. No method raises, whatever the bytes
are: an unreadable batch is counted, and this engine's known cache content is discarded.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ext_proc.telemetry.kv_events.decode import BadBatch, decode
from ext_proc.telemetry.kv_events.events import AllBlocksCleared
from ext_proc.telemetry.kv_events.sequence import Sequence, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.cache.index_events import CacheEvent
    from ext_proc.telemetry.kv_events.translate import Translator


class Follower:
    """Follows one engine.

    Args:
        translator: Translates events to index changes.
        change: Receives each change.
        on_complete: Called when ``complete`` changes, that is, whether the whole cache is known.
        can_replay: The engine has a replay address.
    """

    def __init__(
        self,
        translator: Translator,
        change: Callable[[CacheEvent], None],
        on_complete: Callable[[bool], None],
        *,
        can_replay: bool,
    ) -> None:
        self._translator = translator
        self._change = change
        self._on_complete = on_complete
        self._sequence = Sequence(can_replay=can_replay)
        self._published_complete = False
        self.can_replay = can_replay
        self.counts: Counter[str] = Counter()
        """Received batches and events by kind, for metrics."""
        self.error: str | None = None
        """Error of the last unreadable batch."""

    @property
    def complete(self) -> bool:
        """Return whether the engine's whole cache content is known."""
        return self._sequence.complete

    @property
    def waits(self) -> bool:
        """Return whether the engine has published nothing yet, as an idle one after its start."""
        return self._sequence.waits

    @property
    def missing(self) -> int:
        """Return the first batch that a replay should deliver."""
        return self._sequence.missing

    def passed(self) -> Counter[str]:
        """Return the ignored blocks, by reason."""
        return self._translator.passed

    @property
    def other_size(self) -> int | None:
        """Return the engine's block size if it differs from the pool's."""
        return self._translator.other_size

    def live(self, number: int, payload: bytes) -> bool:
        """Apply a batch that was just published.

        Returns:
            False if earlier batches are missing: get a replay of them, or call ``give_up``, and
            then pass this batch again.
        """
        return self._take(self._sequence.live(number), payload)

    def replayed(self, number: int, payload: bytes, *, first: bool) -> bool:
        """Apply a batch of a replay; False if others were lost before it: request it again."""
        return self._take(self._sequence.replayed(number, first=first), payload)

    def replay_ended(self, *, empty: bool) -> None:
        """Record that a replay is complete."""
        self._sequence.replay_ended(empty=empty)
        self._settle()

    def give_up(self, number: int) -> None:
        """Record that the batches missing before a live batch cannot be recovered."""
        self._sequence.give_up(number)
        self._settle()

    def lost(self) -> None:
        """Record that the connection was lost."""
        self._sequence.lost()
        self._settle()

    def _take(self, step: Step, payload: bytes) -> bool:
        if step is Step.REPLAY:
            self._settle()
            return False
        if step is Step.SKIP:
            return True
        self.counts["batches"] += 1
        try:
            batch = decode(payload)
        except BadBatch as error:
            self.counts["unreadable"] += 1
            self.error = str(error)
            self._sequence.unreadable()
            self._settle()
            return True
        self._settle()
        self.counts["unknown"] += batch.unknown
        for event in batch.events:
            self.counts[type(event).__name__] += 1
            if isinstance(event, AllBlocksCleared):
                self._sequence.cleared()
            change = self._translator.take(event)
            if change is not None:
                self._change(change)
        self._settle()
        return True

    def _settle(self) -> None:
        """Apply the state of the sequence: purge the index, count, report completeness."""
        sequence = self._sequence
        if sequence.forget:
            sequence.forget = False
            self.counts["purges"] += 1
            self._change(self._translator.cleared())
        self.counts["gaps"], self.counts["restarts"] = sequence.gaps, sequence.restarts
        if sequence.complete != self._published_complete:
            self._published_complete = sequence.complete
            self._on_complete(sequence.complete)
