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
3. The most answers under way *stand* if ``ENDS`` or more have ended since so many were first, and
   ``BOUND`` of these while so many were: another begins whenever one ends, as in an engine whose
   slots are taken. Elsewhere the most are under way for moments.
4. A window is *full* once ``BOUND`` of its answers found the limit reached, or ``MORE`` more
   requests in flight than the most answers under way, where these do not stand ``WAITS`` times as
   many and two more. Then the slots are the most answers that were under way in the last ``KEPT``
   windows. If as many were as the limit allows, none waited: the slots rise by a quarter. Each
   ``TURNS``-th full window tries an eighth more, for an engine that always computes some prompts
   before it answers.
5. Nothing is known before ``FIRST`` answers and ``FIRST_S`` seconds. If requests waited at half a
   window of these since the most were under way first, they are a full window. Otherwise the slots
   are twice the most that were in flight, or twice the answers under way, at least ``SPARE`` more,
   if these stand and that is less. They do not fall in windows that are not full.
6. At most ``MAX_ANSWERS`` answers are kept of each kind; the oldest are dropped.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from heapq import heappop, heappush
from typing import Final

FIRST: Final = 50
WINDOW: Final = 25
LATE_S: Final = 2.0
FIRST_S: Final = 3 * LATE_S
LEAST_S: Final = 0.02
SLACK_S: Final = 0.05
STREAMED: Final = 0.75
ENDS: Final = 6
BOUND: Final = 0.5
MORE: Final = 4
KEPT: Final = 4
TURNS: Final = 8
WAITS: Final = 1.5
SPARE: Final = 8
MAX_ANSWERS: Final = 4096
MAX_SLOTS: Final = 2**20
"""More slots than this are no limit."""


class AnswersUnderWay:
    """Answers of a replica's model that have begun and not ended (rules 1 to 3 and 6)."""

    __slots__ = (
        "_began",
        "_ended",
        "at_most",
        "count",
        "ends",
        "events",
        "lasted",
        "most",
        "whole",
    )

    def __init__(self) -> None:
        self._began: dict[int, float] = {}
        """When answers began that have not ended, by ticket id; monotonic seconds."""
        self._ended: OrderedDict[int, tuple[float, float]] = OrderedDict()
        """When requests of which no first byte is known yet were sent, and ended."""
        self.events: list[tuple[float, int]] = []
        """A heap: at this time, one more or one fewer was under way."""
        self.count = 0
        """How many were ``LATE_S`` ago."""
        self.most = 0
        """Most of them since ``begin``."""
        self.ends = 0
        """Answers that have ended since so many were under way first."""
        self.at_most = 0
        """Those of them that ended while so many were."""
        self.lasted = 0
        """Answers since then that lasted ``LEAST_S`` or more."""
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
                self._add(sent + seconds + SLACK_S, 1)
            return True
        sent, ended = self._ended.pop(ticket_id, (None, 0.0))
        if sent is None:
            return False
        at = min(sent + seconds, ended)
        self._lasted(at, ended)
        if len(self.events) < 2 * MAX_ANSWERS:
            self._add(at + SLACK_S, 1)
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
            change = heappop(events)[1]
            if change < 0:
                self.ends += 1
                self.at_most += self.count == self.most
            self.count += change
            if self.count > self.most:
                self.most, self.ends, self.at_most = self.count, 0, 0

    def begin(self) -> None:
        """Begin a window."""
        self.most, self.lasted, self.whole = self.count, 0, 0
        self.ends = self.at_most = 0

    @property
    def stands(self) -> bool:
        """Return whether the most answers under way stand."""
        return self.ends >= ENDS and self.at_most >= BOUND * self.ends

    @property
    def streamed(self) -> bool:
        """Return whether nearly all answers of the window were streams."""
        return self.lasted >= STREAMED * (self.lasted + self.whole) > 0

    def _lasted(self, began: float, ended: float) -> None:
        if ended - began >= LEAST_S:
            self.lasted += 1
        else:
            self.whole += 1

    def _add(self, at: float, change: int) -> None:
        heappush(self.events, (at, change))


class StreamSlots:
    """Slots from answers that are under way (rules 2, 4 and 5)."""

    __slots__ = (
        "_bound",
        "_count",
        "_full",
        "_kept",
        "_most",
        "_peak",
        "_since",
        "answers",
        "slots",
    )

    def __init__(self) -> None:
        self.slots: int | None = None
        """Those in force; ``None`` = not known."""
        self.answers = AnswersUnderWay()
        self._count = 0
        """Answers of this window."""
        self._bound = 0
        """How many of them found the limit reached, or that requests wait."""
        self._peak = 0
        """Most requests that were in flight in this window."""
        self._most = 0
        """The most answers that were under way in the windows of ``_kept``; before the first, since
        when ``_bound`` counts."""
        self._kept: deque[int] = deque(maxlen=KEPT)
        """Most answers under way, by window."""
        self._full = 0
        """Windows that were full."""
        self._since: float | None = None
        """When the first answer ended, monotonic seconds."""

    def answered(  # noqa: C901, PLR0912 - a function for a part costs each answer a call
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
        most = answers.most
        if most < self._most:  # noqa: PLR1730 - half the time
            most = self._most
        if in_flight > most + 2 and in_flight >= (
            most + MORE if answers.stands else WAITS * most + 2
        ):
            if slots is None and most > self._most:
                self._most, self._bound = most, 0
            self._bound += count
        elif slots is not None and in_flight > slots:
            self._bound += count
        if slots is None:
            if self._since is None:
                self._since = now
            if self._count < FIRST or now - self._since < FIRST_S:
                return False
            full = most == self._most and self._bound >= BOUND * WINDOW
        else:
            size = max(WINDOW, min(slots + 1, self._peak))
            full = self._bound >= BOUND * size
            if self._count < size and not full:
                return False
        if not answers.streamed:
            if answers.whole or slots is None:
                self.slots = self._since = None
        elif answers.most:
            self.slots = min(self._next(slots, answers.most, full=full), MAX_SLOTS)
        answers.begin()
        self._count = self._bound = self._peak = 0
        return self.slots != slots

    def _next(self, slots: int | None, most: int, *, full: bool) -> int:
        self._kept.append(most)
        self._most = max(self._kept)
        if not full:
            if slots is not None:
                return max(slots, most)
            first = 2 * self._peak
            return min(first, max(2 * most, most + SPARE)) if self.answers.stands else first
        self._full += 1
        if slots is not None and most > slots:
            return slots + max(1, slots // 4)
        found = self._most
        return found + (0 if self._full % TURNS else max(1, found // 8))
