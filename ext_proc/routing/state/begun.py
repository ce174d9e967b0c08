"""Slots of a replica that tells none, from how many of its answers are under way at once. Pure.

An engine gives a request a slot and then begins to answer it, and it ends the answer before another
request gets that slot. So of an engine that streams, the most answers that were under way at once
while other requests waited are its slots, however long the answers are.

Rules:

1. The proxy tells a first byte up to a second late, so what was under way is known ``LATE_S``
   later, also of answers that have ended by then. An end is known somewhat late, so that another
   answer seems to begin before it: one counts ``SLACK_S`` after its first byte.
2. Answers are counted in windows of ``WINDOW`` or the limit, shorter ones if they are full. One
   tells of slots if ``STREAMED`` of its answers lasted ``LEAST_S`` or more from their first byte
   on: an answer that comes as a whole is under way for no time, and of answers to peer workers no
   first byte is known. Otherwise slots are forgotten, but not where the proxy has told nothing.
3. The *level* is the most under way in this window and the last ``KEPT``. While ``MORE`` requests
   more, or a quarter, are in flight, it *stands* if another answer begins whenever one ends, as in
   an engine whose slots are taken: ``ENDS`` (a 16th of the level more) have ended and as many
   begun, in ``STANDS_S`` or more, nearly so many were under way for ``BOUND`` of that time, and
   first bytes came ``LATER`` times as late as usual: prompts that are computed are no queue.
   Elsewhere the most are under way for moments. Once the level stands, it is the slots.
4. A window is *full* if, for ``FULL_S`` or more, ``BOUND`` of its answers found the limit reached,
   or ``WAITS`` times the level, and two more, in flight. Then the slots are at most the level and a
   16th, of prompts that are computed. Each ``TURNS``-th full window tries an eighth more.
5. If more than the slots were under way ``OVER`` times in a window, or in a full one, they rise at
   once: by a quarter, then half, then all, until they are found again; by half first if loose.
6. Slots are *loose* until the level has stood or a window was full: known after ``FIRST`` answers
   and ``FIRST_S`` seconds, they are ``WAITS`` times the most under way, ``SPARE`` more than these,
   or a quarter more than were in flight, at most twice that. They fall in full windows only.
7. At most ``MAX_ANSWERS`` answers are kept of each kind; the oldest are dropped.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from heapq import heappop, heappush
from typing import Final

FIRST: Final = 50
WINDOW: Final = 25
LATE_S: Final = 1.25
FIRST_S: Final = 6.0
FULL_S: Final = 2.0
LEAST_S: Final = 0.02
SLACK_S: Final = 0.05
STREAMED: Final = 0.75
ENDS: Final = 4
STANDS_S: Final = 0.5
BOUND: Final = 0.5
MORE: Final = 2
OVER: Final = 2
PART: Final = 4
LATER: Final = 2.0
FALL: Final = 0.2
RISE: Final = 0.02
KEPT: Final = 4
TURNS: Final = 8
WAITS: Final = 1.5
SPARE: Final = 4
MAX_ANSWERS: Final = 4096
MAX_SLOTS: Final = 2**20
"""More slots than this are no limit."""


class AnswersUnderWay:
    """Answers of a replica's model that have begun and not ended (rules 1 to 3 and 6)."""

    __slots__ = (
        "_at",
        "_began",
        "_ended",
        "_noted",
        "_stood_s",
        "_usual_s",
        "_waited_s",
        "_watched",
        "_watched_s",
        "begins",
        "count",
        "ends",
        "events",
        "lasted",
        "level",
        "most",
        "over",
        "slots",
        "whole",
    )

    def __init__(self) -> None:
        self._began: dict[int, float] = {}
        """When answers began that have not ended, by ticket id; monotonic seconds."""
        self._ended: OrderedDict[int, tuple[float, float]] = OrderedDict()
        """When requests of which no first byte is known yet were sent, and ended."""
        self.events: list[tuple[float, int, float]] = []
        """A heap: at this time one more, after so many seconds, or one fewer was under way, or one
        fewer than this number, from 2 on, was in flight."""
        self.count = 0
        """How many were ``LATE_S`` ago."""
        self.most = 0
        """Most of them since ``begin``."""
        self.level = 0
        """Most of them, of earlier windows too (rule 3)."""
        self.slots = MAX_SLOTS
        """Slots in force."""
        self.over = 0
        """How often more than these were under way since ``begin``."""
        self._noted = self._watched = False
        """Whether requests wait by the latest number in flight, and did ``LATE_S`` ago."""
        self.ends = self.begins = 0
        """Answers that ended and began meanwhile."""
        self._watched_s = self._stood_s = self._at = 0.0
        """Seconds of that, those with about so many under way, and until when they are counted."""
        self._waited_s = 0.0
        """Sum of the seconds to first bytes meanwhile."""
        self._usual_s = 0.0
        """A low quantile of those at other times; 0 = not known."""
        self.lasted = 0
        """Answers since ``begin`` that lasted ``LEAST_S`` or more."""
        self.whole = 0
        """The others, of which a beginning is known, and answers to peer workers."""

    def began(self, ticket_id: int, sent: float | None, seconds: float) -> bool:
        """Note an answer's first byte.

        Args:
            ticket_id: The request's ticket.
            sent: When it was sent, monotonic seconds; ``None`` = it has ended.
            seconds: Time from then to the first byte.

        Returns:
            Whether the request is known here.
        """
        if sent is not None:
            if len(self._began) < MAX_ANSWERS and ticket_id not in self._began:
                self._began[ticket_id] = sent + seconds
                self._add(sent + seconds + SLACK_S, 1, seconds)
            return True
        sent, ended = self._ended.pop(ticket_id, (None, 0.0))
        if sent is None:
            return False
        at = min(sent + seconds, ended)
        self._lasted(at, ended)
        if len(self.events) < 2 * MAX_ANSWERS:
            self._add(at + SLACK_S, 1, seconds)
            self._add(max(at + SLACK_S, ended), -1)
        return True

    def ended(self, ticket_id: int, sent: float, now: float) -> None:
        """Note the end of a request that was sent at ``sent``, now; monotonic seconds."""
        began = self._began.pop(ticket_id, None)
        if began is None:
            self._ended[ticket_id] = sent, now
            if len(self._ended) > MAX_ANSWERS:
                self._ended.popitem(last=False)
        else:
            self._lasted(began, now)
            self._add(max(began + SLACK_S, now), -1)

    def follow(self, now: float) -> None:
        """Count what was under way until ``LATE_S`` ago."""
        events, until = self.events, now - LATE_S
        while events and events[0][0] <= until:
            at, change, seconds = heappop(events)
            if self._watched:
                self._watched_s += at - self._at
                if self.count >= self.level - self.level // 8:
                    self._stood_s += at - self._at
                self._at = at
                self.ends += change < 0
                if change == 1:
                    self.begins += 1
                    self._waited_s += seconds
            elif change == 1:
                usual = self._usual_s or seconds
                self._usual_s = usual + (seconds - usual) * (FALL if seconds < usual else RISE)
            if change > 1:
                self._watched, self._at = self._waits(change - 1), at
                continue
            self.count += change
            if self.count > self.most:
                self.most = self.count
                if self.count > self.level:
                    self.level = self.count
                    self._forget()
            if change > 0 and self.count > self.slots:
                self.over += 1

    def found(self, in_flight: int, now: float) -> None:
        """Note how many requests were in flight when an answer ended."""
        waits = self._waits(in_flight)
        if waits or self._noted:
            self._noted = waits
            self._add(now, in_flight + 1)

    def _waits(self, in_flight: int) -> bool:
        return in_flight >= self.level + max(MORE, self.level // 4)

    def _forget(self) -> None:
        self.ends = self.begins = 0
        self._stood_s = self._watched_s = self._waited_s = 0.0

    def begin(self, level: int, slots: int | None) -> None:
        """Begin a window, with the level of earlier ones and these slots in force."""
        self.most, self.lasted, self.whole, self.over = self.count, 0, 0, 0
        level, slots = max(level, self.count), MAX_SLOTS if slots is None else slots
        if (level, slots) != (self.level, self.slots):
            self.level, self.slots = level, slots
            self._forget()

    @property
    def stands(self) -> bool:
        """Return whether the level stands."""
        least = ENDS + self.level // 16
        return (
            self.ends >= least
            and self.begins >= least
            and self._stood_s >= BOUND * self._watched_s >= BOUND * STANDS_S
            and self._waited_s >= LATER * self._usual_s * self.begins
        )

    @property
    def streamed(self) -> bool:
        """Return whether nearly all answers of the window were streams."""
        return self.lasted >= STREAMED * (self.lasted + self.whole) > 0

    def _lasted(self, began: float, ended: float) -> None:
        if ended - began >= LEAST_S:
            self.lasted += 1
        else:
            self.whole += 1

    def _add(self, at: float, change: int, seconds: float = 0.0) -> None:
        heappush(self.events, (at, change, seconds))


class StreamSlots:
    """Slots from answers that are under way (rules 2 to 6)."""

    __slots__ = (
        "_began",
        "_bound",
        "_count",
        "_full",
        "_kept",
        "_level",
        "_part",
        "_peak",
        "_since",
        "answers",
        "loose",
        "slots",
    )

    def __init__(self) -> None:
        self.slots: int | None = None
        """Those in force; ``None`` = not known."""
        self.loose = True
        """They are no more than a bound (rule 6)."""
        self.answers = AnswersUnderWay()
        self._count = 0
        """Answers of this window."""
        self._bound = 0
        """How many of them found the limit reached, or that requests wait."""
        self._peak = 0
        """Most requests that were in flight in this window."""
        self._kept: deque[int] = deque(maxlen=KEPT)
        """Most answers under way, by window."""
        self._full = 0
        """Windows that were full."""
        self._level = 0
        """The level since which ``_bound`` counts, before slots are known."""
        self._part = PART // 2
        """By which part slots rise next (rule 5)."""
        self._began = 0.0
        """When the window began, monotonic seconds."""
        self._since: float | None = None
        """When the first answer ended, monotonic seconds."""

    def answered(  # noqa: C901 - a function for a part costs each answer a call
        self, in_flight: int, count: int, now: float
    ) -> bool:
        """Note answers that ended.

        Args:
            in_flight: Requests that were in flight before.
            count: Answers.
            now: Monotonic seconds.

        Returns:
            Whether the slots changed.
        """
        answers, slots = self.answers, self.slots
        if answers.events:
            answers.follow(now)
        self._count += count
        if in_flight > self._peak:  # noqa: PLR1730 - half the time
            self._peak = in_flight
        level = answers.level
        answers.found(in_flight, now)
        if slots is None and level > self._level:
            self._level, self._bound = level, 0
        if in_flight >= WAITS * level + 2 or (slots is not None and in_flight > slots):
            self._bound += count
        loose = self.loose
        if (
            level
            and (loose or slots is None or level < slots)
            and answers.stands
            and answers.streamed
        ):
            self._kept.append(level)
            self.slots, self.loose, self._part = level, False, PART
        elif slots is None:
            if self._since is None:
                self._since = now
            if self._count < FIRST or now - self._since < FIRST_S:
                return False
            self._end(None, full=self._bound >= BOUND * WINDOW)
        elif answers.over >= OVER:
            self._rise(slots)
        else:
            size = max(WINDOW, min(slots + 1, self._peak))
            full = self._bound >= BOUND * size
            if now - self._began < FULL_S if full else self._count < size:
                return False
            self._end(slots, full=full)
        answers.begin(max(self._kept, default=0), self.slots)
        self._count = self._bound = self._peak = 0
        self._began = now
        return (self.slots, self.loose) != (slots, loose)

    def _rise(self, slots: int) -> None:
        most = self.answers.most
        self._kept.append(most)
        self.slots = min(max(slots + max(1, slots // self._part), most), MAX_SLOTS)
        self._part = max(self._part // 2, 1)

    def _end(self, slots: int | None, *, full: bool) -> None:
        """End a window."""
        answers, most = self.answers, self.answers.most
        if not answers.streamed:
            if answers.whole or slots is None:
                self.slots = self._since = None
                self.loose, self._level, self._part = True, 0, PART // 2
        elif full and slots is not None and most > slots:
            self._rise(slots)
        elif most:
            self._kept.append(most)
            most = max(self._kept)
            if full:
                self._full += 1
                self.loose, self._part = False, PART
                found = most + most // 16
                if slots is not None:
                    found = min(found, slots)
                if self._full % TURNS == 0:
                    found += max(1, most // 8)
            elif slots is None:
                peak = self._peak
                found = min(2 * peak, max(peak + peak // 4, int(WAITS * most), most + SPARE))
            elif self.loose:
                found = max(slots, int(WAITS * most), most + SPARE)
            else:
                found = slots
            self.slots = min(found, MAX_SLOTS)
