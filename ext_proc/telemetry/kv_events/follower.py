"""One engine's published batches, in the order and with the gaps they come in, to index changes.

No I/O: ``subscribe`` reads the sockets and does what is asked for here. Whatever the bytes are, no
method raises; what cannot be read is counted, and costs what was known of this engine's cache.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ext_proc.telemetry.kv_events.decode import BadBatch, decode
from ext_proc.telemetry.kv_events.events import AllBlocksCleared
from ext_proc.telemetry.kv_events.sequence import Sequence, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.cache.exact_index import CacheEvent
    from ext_proc.telemetry.kv_events.translate import Translator


class Follower:
    """Follows one engine.

    Args:
        translator: Its events to changes.
        change: Takes each change.
        complete: Told whenever it changes whether all that the engine holds is known.
        can_ask: It has a replay address.
    """

    def __init__(
        self,
        translator: Translator,
        change: Callable[[CacheEvent], None],
        complete: Callable[[bool], None],
        *,
        can_ask: bool,
    ) -> None:
        self._translator = translator
        self._change = change
        self._tell_complete = complete
        self._sequence = Sequence(can_ask=can_ask)
        self._told_complete = False
        self.can_ask = can_ask
        self.counts: Counter[str] = Counter()
        """What came, by kind, for metrics."""
        self.error: str | None = None
        """Why the last batch that could not be read could not."""

    @property
    def complete(self) -> bool:
        """Tell whether all that the engine holds is known."""
        return self._sequence.complete

    @property
    def missing(self) -> int:
        """Return the first batch that a replay should bring."""
        return self._sequence.missing

    def passed(self) -> Counter[str]:
        """Return the blocks that were passed over, by reason."""
        return self._translator.passed

    @property
    def other_size(self) -> int | None:
        """Return the engine's block size where it is not the pool's."""
        return self._translator.other_size

    def live(self, number: int, payload: bytes) -> bool:
        """Take a batch that was just published.

        Returns:
            False where batches before it are missing: get a replay of them, or ``give_up``, and
            then offer it again.
        """
        return self._take(self._sequence.live(number), payload)

    def replayed(self, number: int, payload: bytes, *, first: bool) -> bool:
        """Take a batch of a replay; False where others were lost before it: ask once more."""
        return self._take(self._sequence.replayed(number, first=first), payload)

    def replay_ended(self, *, empty: bool) -> None:
        """Note that a replay was told to its end."""
        self._sequence.replay_ended(empty=empty)
        self._settle()

    def give_up(self, number: int) -> None:
        """Note that what is missing before a live batch cannot be had."""
        self._sequence.give_up(number)
        self._settle()

    def lost(self) -> None:
        """Note that the connection was lost."""
        self._sequence.lost()
        self._settle()

    def _take(self, step: Step, payload: bytes) -> bool:
        if step is Step.ASK:
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
        """Say what the sequence has found out."""
        sequence = self._sequence
        if sequence.forget:
            sequence.forget = False
            self.counts["purges"] += 1
            self._change(self._translator.cleared())
        self.counts["gaps"], self.counts["restarts"] = sequence.gaps, sequence.restarts
        if sequence.complete != self._told_complete:
            self._told_complete = sequence.complete
            self._tell_complete(sequence.complete)
