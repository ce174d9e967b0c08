"""Slots of one model of a replica: how many requests it runs at once. Pure.

Rules:

1. They are *declared* by the engine or its configuration, else *observed*: what runs while requests
   wait for room. It must not have changed for ``SAME_S``, or they have waited for ``STANDS_S``, in
   all readings, none of which is old. Where the engine counts first tokens, an answer must have
   begun meanwhile, and of a number that changes the cache is half full, or ``MANY`` times as many
   wait: else they wait for a long prompt, however many the engine could run. The highest of the
   last ``KEPT`` counts, since a cache full of long prompts runs fewer. Where more run than that and
   none waits, the engine has room for these: a quarter more counts, and the limit follows.
2. Else they are *learned*, never from how long answers take, which is their length. Those of an
   engine that streams are in ``begun``, others follow from how fast answers end. Nothing is known
   before ``FIRST`` answers; then they are the most requests that were in flight, at least
   ``LEAST``.
3. Answers are counted in windows of ``WINDOW`` or twice the limit. A window tells the rate of its
   slots if the limit was reached at ``BOUND`` of its answers: otherwise what ends is what has come.
   It begins anew while more are in flight than the limit, as after it has fallen.
4. Slots are *good* if no more of them were faster by 5 %, or by a quarter of what they are more.
   The lowest good ones are looked for, upwards by doubling, downwards by halving what is between.
   Once neighbours are known they rise by one step in each eighth window, and fall by one in each
   eighth, so that they follow the engine. A step is 1 up to 16, and an eighth above: one slot of
   100 is no 5 %.
5. A rate is that of the last ``MEMORY`` answers with its slots. At most ``MAX_LEVELS`` are kept,
   and none where one changes by ``CHANGED``: the requests are others then, or the engine is.
"""

from __future__ import annotations

from collections import deque
from math import nan
from typing import Final, NamedTuple

from ext_proc.routing.state.begun import MAX_SLOTS, StreamSlots
from ext_proc.routing.state.candidates import FRESH_S

DECLARED: Final = "declared"
OBSERVED: Final = "observed"
LEARNED: Final = "learned"

KEPT: Final = 8
SAME_S: Final = 0.75
STANDS_S: Final = 2.0
"""Seconds. Where the steps of an engine are full of prompts, some wait for moments, however many it
could run; but then ever more run, or fewer."""
FIRST: Final = 50
HALF: Final = 0.5
"""Share of the KV cache in use from which on what waits may wait for room in it."""
MANY: Final = 2.0
"""Requests that wait for each that runs, from which on it is overload and no long prompt."""
LEAST: Final = 4
WINDOW: Final = 25
BOUND: Final = 0.8
RISE: Final = 0.05
SHARE: Final = 0.25
SURE: Final = 1.5
"""A rate that is higher by this factor needs no second window."""
MEMORY: Final = 200
MAX_LEVELS: Final = 32
CHANGED: Final = 1.7
"""A rate that differs by this factor from the earlier one with the same slots is another load."""
BURSTS: Final = 0.25
"""Share of a limit from answers under way by which a burst may exceed it."""
TURNS: Final = 8
"""Windows of which one tries a step up, and one a step down."""


class Known(NamedTuple):
    """How many requests of a model a replica runs at once."""

    slots: int
    source: str
    """``declared``, ``observed`` or ``learned``."""
    batch: int = 1
    """How many it takes at once when it has room; of learned slots, how much they may be wrong."""

    bursts: float = 1.0
    """By which share of it a burst may exceed the limit."""

    @property
    def limit(self) -> int:
        """Return the limit of requests in flight: the next ones to run are at hand."""
        return self.slots + self.batch


def spare(slots: int) -> int:
    """Return how many requests more than so many learned slots a replica gets."""
    return max(1, slots // 4)


class LearnedSlots:
    """Slots that are learned (rules 2 to 5)."""

    __slots__ = (
        "_bound",
        "_count",
        "_limit",
        "_peak",
        "_rates",
        "_since",
        "_tries",
        "_window",
        "good",
        "slots",
    )

    def __init__(self) -> None:
        self.slots: int | None = None
        """Those in force; ``None`` = not known yet."""
        self.good = 0
        """The lowest level than which no higher one is faster; 0 = not known yet."""
        self._count = 0
        """Answers of this window."""
        self._bound = 0
        """How many of them found the limit reached."""
        self._peak = 0
        """Most requests that were in flight in this window."""
        self._limit = 0
        """The limit in this window."""
        self._window = 0
        """Answers after which it ends."""
        self._since: float | None = None
        self._tries = 0
        """Windows since the search ended."""
        self._rates: dict[int, tuple[float, float]] = {}
        """Answers and seconds by level, the latest last."""

    def answered(self, in_flight: int, count: int, now: float) -> bool:
        """Note answers that ended.

        Args:
            in_flight: Requests that were in flight before.
            count: Answers.
            now: Monotonic seconds.

        Returns:
            Whether the slots changed.
        """
        slots = self.slots
        self._count += count
        if in_flight > self._peak:  # noqa: PLR1730 - half the time
            self._peak = in_flight
        if slots is None:
            if self._count < FIRST:
                return False
            self.slots = min(max(self._peak, LEAST), MAX_SLOTS)
            self._begin(now)
            return True
        limit = self._limit
        if in_flight > limit + 2:  # sent before the limit fell
            self._begin(now)
            return False
        if in_flight >= limit:
            self._bound += count
        if self._since is None or self._count < self._window:
            return False
        seconds, peak = now - self._since, self._peak
        if seconds <= 0.0 or self._bound < BOUND * self._count:
            if self.good and slots > self.good:  # no more were needed
                self.slots = max(self.good, min(slots, peak))
        else:
            self.slots = self._next(slots, seconds)
        self._begin(now)
        return self.slots != slots

    def _next(self, slots: int, seconds: float) -> int:
        """Return the level to try after one that was bound."""
        rates = self._rates
        answers, earlier = rates.pop(slots, (0.0, 0.0))
        if answers and not 1 / CHANGED < self._count / seconds / (answers / earlier) < CHANGED:
            rates.clear()
            answers = earlier = 0.0
        kept = max(min(1.0, (MEMORY - self._count) / answers), 0.0) if answers else 0.0
        rates[slots] = answers * kept + self._count, earlier * kept + seconds
        if len(rates) > MAX_LEVELS:
            del rates[next(iter(rates))]
        levels = sorted(rates)
        good = self.good = next(each for each in levels if not self._beaten(each, levels))
        below = max((each for each in levels if each < good), default=0)
        step = max(1, good // 8)
        if len(levels) == 1 and good > 2 * LEAST:
            return good // 2  # found before there was a limit, so it is rather too high
        if good == levels[-1]:
            self._tries = 0
            if (
                below
                and rates[good][0] < 2 * WINDOW
                and self._rate(good) < SURE * self._rate(below)
            ):
                return good
            return min(2 * good, good + max(step, good - below), MAX_SLOTS)
        if good - below > step:
            self._tries = 0
            return (good + below) // 2
        self._tries += 1
        turn = self._tries % TURNS
        return good + step if turn == 0 else max(below, 1) if turn == TURNS // 2 else good

    def _beaten(self, level: int, levels: list[int]) -> bool:
        """Return whether a higher level is faster."""
        return any(
            self._rate(each) >= self._rate(level) * (1 + max(RISE, SHARE * (each / level - 1)))
            for each in levels
            if each > level
        )

    def _rate(self, level: int) -> float:
        answers, seconds = self._rates[level]
        return answers / seconds

    def _begin(self, now: float) -> None:
        self._count = self._bound = self._peak = 0
        self._since = now
        if self.slots is not None:
            self._limit = self.slots + spare(self.slots)
            self._window = max(WINDOW, 2 * self._limit)


class Slots:
    """What is known of the slots of one model of a replica, or of the replica."""

    __slots__ = (
        "_full_first",
        "_full_since",
        "_runs",
        "_same_first",
        "_same_since",
        "_seen_at",
        "batch",
        "declared",
        "full",
        "learned",
        "streams",
        "tells",
    )

    def __init__(self) -> None:
        self.declared: int | None = None
        self.batch = 1
        """How many it takes at once when it has room, as declared."""
        self.full: deque[int] = deque(maxlen=KEPT)
        """What ran in the latest readings with requests that waited."""
        self._full_since: float | None = None
        """Since when all readings had some, monotonic seconds; ``None`` = the last one had none."""
        self._same_since = 0.0
        """Since when as many ran in these, monotonic seconds."""
        self._runs = 0.0
        """How many ran in the latest of these."""
        self._full_first = self._same_first = 0.0
        """Answers that had begun at these two times."""
        self.tells = False
        """The engine declares its slots, or tells what runs and waits: none need to be learned."""
        self._seen_at = float("-inf")
        self.learned = LearnedSlots()
        self.streams = StreamSlots()

    def read(
        self,
        at: float,
        slots: float | None,
        running: float | None,
        waits: float | None,
        batch: float | None = None,
        first_tokens: float | None = None,
        kv_used: float | None = None,
    ) -> None:
        """Take a reading.

        Args:
            at: When it was read, monotonic seconds.
            slots: What the engine declares.
            running: Requests that run.
            waits: Requests that wait for room; ``None`` = not known.
            batch: Requests that the engine takes at once when it has room, as it declares.
            first_tokens: Counter of the answers that have begun; ``None`` = not counted.
            kv_used: Share of the KV cache in use, 0..1; ``None`` = not known.
        """
        if slots is not None and 1 <= slots <= MAX_SLOTS:
            self.declared = int(slots)
            self.batch = int(min(max(batch or 1, 1), slots))
        self.tells = self.tells or self.declared is not None or None not in {running, waits}
        if at <= self._seen_at:
            return
        before, self._seen_at = self._seen_at, at
        since, self._full_since = self._full_since, None
        if running is None or waits is None or not 1 <= running <= MAX_SLOTS:
            return
        if waits >= 1:
            first = nan if first_tokens is None else first_tokens  # differs from itself
            anew = since is None or at - before > FRESH_S
            full_since = self._full_since = at if since is None or anew else since
            if anew:
                self._full_first = first
            if anew or running != self._runs:
                self._same_since, self._same_first, self._runs = at, first, running
            stands = at - full_since >= STANDS_S and first != self._full_first
            if first_tokens is not None and kv_used is not None:
                stands = stands and (kv_used >= HALF or waits >= MANY * running)
            if stands or (at - self._same_since >= SAME_S and first != self._same_first):
                self.full.append(int(running))
        elif self.full and running > max(self.full):
            self.full.append(int(running + max(1, running // 4)))

    def answered(self, in_flight: int, count: int, now: float, *, own: bool = True) -> bool:
        """Note answers, as ``LearnedSlots`` does; return whether what is known changed.

        ``own``: first bytes of these answers are told here.
        """
        if self.tells:
            return False
        streams = self.streams
        if not own:
            streams.answers.whole += count
        changed = streams.answered(in_flight, count, now)
        if streams.slots is not None:
            return changed
        return self.learned.answered(in_flight, count, now) or changed

    def known(self) -> Known | None:
        """Return the first that is known."""
        if self.declared is not None:
            return Known(self.declared, DECLARED, self.batch)
        if self.full:
            return Known(max(self.full), OBSERVED)
        if self.streams.slots is not None:
            return Known(self.streams.slots, LEARNED, bursts=0.0 if self.streams.loose else BURSTS)
        slots = self.learned.slots
        return None if slots is None else Known(slots, LEARNED, spare(slots), 0.0)
