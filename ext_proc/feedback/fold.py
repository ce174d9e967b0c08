"""Applies log entries to the router's state. Pure.

Rules:

1. Only entries of this picker's current run count: each pick carries its tag, with or without a
   ticket, which no other peer knows. Others are only counted.
2. The end of a stream settles a ticket; an entry never does: entries come up to a second later, in
   batches, and may be lost. A final entry judges replicas. An intermediate one moves the charge of
   a running request to the replica that serves it, and is a sign of life. Both are samples of the
   replica's response time.
3. What an attempt means is for the law of blame (``ext_proc.blame.law``) to say. For a retried
   request, the replica that served is credited with the response. The prompt's blocks are
   confirmed where an answer below 400 began, also by an intermediate entry, else withdrawn.
4. Earlier attempts are known by their own entries (``attempts``). Where there are none, they are
   guessed from the order in which the proxy tries the picks.
5. Except for failed attempts and first bytes that were told (``attempts``), nothing is kept
   per request, so late, duplicate and unknown entries only increment a counter.
6. A replica's 404 to a request that was sent there for its model is told to the placement, which
   may have the replica asked.
7. Judgements are published to the machine's other workers, which apply them as their own:
   consecutive failures are counted per machine, however the requests were distributed.
8. The end of a request in a pool with a rollout is told to its sessions (``canary_ends``).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from ext_proc.blame.evidence import Ended, Evidence
from ext_proc.blame.law import (
    FIRST_ERROR,
    Blame,
    Effect,
    Mark,
    abandons,
    all_alike,
    is_good,
    keeps_prompt,
    lacks_model,
    ruling,
    sign,
    stands_alone,
    survived,
    suspected_death,
)
from ext_proc.blame.origins import ANONYMOUS, number_of
from ext_proc.blame.origins import UNKNOWN as UNKNOWN_CLIENT
from ext_proc.feedback.attempts import AnswerTimes, FailedAttempts, Tried
from ext_proc.feedback.canary_ends import take_end
from ext_proc.feedback.entries import Hung, Judged, answer_speed, attempt_of, passed_over
from ext_proc.feedback.usage import TokenCounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.blame.evidence import Attempt
    from ext_proc.feedback.entries import AttemptEntry, Entry
    from ext_proc.routing.router import Router
    from ext_proc.routing.values.pool import EndpointKey

MAX_DIGITS: Final = 18
"""Maximum digits of a ticket's number."""
FOREIGN: Final = "foreign"
"""The entry belongs to another picker, or to an earlier run of this one."""
UNKNOWN: Final = "unknown"
"""The entry's replica is not (or no longer) in the pool."""
EARLY: Final = "early"
"""The entry's request is still running."""
ATTEMPT: Final = "attempt"
"""The entry is that of a failed attempt."""
GOOD: Final = "good"
_DONE: Final = Ended.DONE
_EFFECT_GOOD: Final = Effect.GOOD
_NO_BLAME: Final = Blame.NONE
"""Constants, because every entry needs them: looking up an enum member takes 0.1 µs."""


class Feedback:
    """Applies log entries.

    Args:
        router: Router whose charges move and whose conditions change.
        picker: This picker's id.
        life: Prefix of this run's tickets.
        on_judged: Receives the judgements of this picker's own entries.
        on_chat: Receives pool and replica of a chat whose tokens are known here, these, and those
            that its engine counted.
    """

    def __init__(
        self,
        router: Router,
        *,
        picker: str,
        life: str,
        on_judged: Callable[[Judged], None] | None = None,
        on_chat: Callable[[str, EndpointKey, int, int], None] | None = None,
    ) -> None:
        self._on_judged = on_judged
        self._on_chat = on_chat
        self._router = router
        self._at = router.registry.at
        self._learner = router.learner
        self._suspects = router.suspicion.open
        self._canaries = router.registry.canaries.running
        self._standing = router.conditions.standing
        self._picker = picker
        self._life = life
        self._failed = FailedAttempts()
        self._times = AnswerTimes()
        self.outcomes: Counter[str] = Counter()
        """Entries by outcome, or by the reason why they were ignored."""
        self.blamed: Counter[tuple[str, Blame]] = Counter()
        """Attempts by pool and blame."""
        self.retried = 0
        """Requests served by a replica other than the pick."""
        self.moved = 0
        """Charges moved while their requests were running."""
        self.usage = TokenCounts()
        """Tokens that answers told."""

    def state(self) -> dict[str, object]:
        """Return the counters, ready for JSON."""
        return {
            "entries": {str(outcome): count for outcome, count in self.outcomes.items()},
            "attempts": {f"{pool} {blame}": n for (pool, blame), n in self.blamed.items()},
            "retried": self.retried,
            "moved": self.moved,
        }

    def pool_of(self, cluster: str) -> str:
        """Return the pool of a cluster's name; empty if there is no such pool."""
        pool = cluster.partition("/")[0]
        return pool if pool in self._router.pools else ""

    # --- Entries --------------------------------------------------------------------------------

    def take(self, entry: Entry, now: float) -> str:
        """Apply one entry of a request and return its outcome.

        Args:
            entry: The entry.
            now: Monotonic seconds.
        """
        outcome = self._take(entry, now)
        self.outcomes[outcome] += 1
        return outcome

    def attempted(self, entry: AttemptEntry, now: float) -> None:
        """Apply the entry of one failed attempt.

        Args:
            entry: The entry.
            now: Monotonic seconds.
        """
        number = self._number(entry.ticket)
        ours = entry.picker == self._picker and entry.ticket.startswith(self._life)
        if not ours or number is None:
            self.outcomes[FOREIGN] += 1
            return
        self.outcomes[ATTEMPT] += 1
        pool, attempt = entry.cluster.partition("/")[0], entry.attempt
        since = now - entry.lasted_s
        tried = Tried(attempt, entry.began_unix_s, since, since)
        self._suspect(pool, attempt, number, now)
        self._missed(pool, attempt, number, now)
        if attempt.ended is Ended.UNREACHED and attempt.address is not None:
            self._router.starts.unreached(number, attempt.address, now)
        if stands_alone(attempt):
            evidence = self._evidence(pool, tried)
            tried = tried._replace(outcome=self._convict(pool, evidence, number, tried, now))
        self._failed.add(number, tried)

    def _take(self, entry: Entry, now: float) -> str:
        ticket, served = entry.ticket, entry.served
        if entry.picker != self._picker or not ticket.startswith(self._life):
            return FOREIGN
        pool = entry.cluster.partition("/")[0]
        key = None if served is None else self._at(pool, served)
        if not entry.final:
            if key is not None:
                self._running(entry, pool, key, now)
            return EARLY
        number = self._number(ticket)
        if self._canaries and number is not None and pool in self._canaries:
            take_end(self._canaries[pool], number, entry, now)
        if self._standing:
            self._standing.ended(number)
        good = entry.ended is _DONE and is_good(entry.status, entry.grpc_status)
        if key is None or not good or entry.attempts > 1:
            return self._with_siblings(entry, pool, key, number, now)
        self._good(entry, pool, key, number, now)
        return GOOD

    def _running(self, entry: Entry, pool: str, key: EndpointKey, now: float) -> None:
        router, number = self._router, self._number(entry.ticket)
        self._time(entry, pool, key, number, now)
        sent_s = entry.delivered_at_s
        told = sign(delivered=sent_s is not None, answered=entry.answer_bytes > 0)
        if told is Mark.SILENT and number is not None and sent_s is not None:
            client, since = router.sent.client(number), now - max(entry.lasted_s - sent_s, 0.0)
            headed = entry.status > 0
            self._standing.note(number, key, client, since, now, pool, headed=headed)
        elif told is Mark.ALIVE:
            self._standing.ended(number)
            router.conditions.alive(key, now)
            if number is not None and 0 < entry.status < FIRST_ERROR:
                router.suspicion.answered(number, key.id, now)
        if entry.served is not None and number is not None:
            self.moved += router.note_serving(number, entry.served, now)
            if entry.answer_bytes and 0 < entry.status < FIRST_ERROR:
                router.confirmed(number, key)

    def _good(
        self, entry: Entry, pool: str, key: EndpointKey, number: int | None, now: float
    ) -> None:
        router, origin, client = self._router, 0, UNKNOWN_CLIENT
        if number is not None:
            client = router.sent.client(number)
            router.confirmed(number, key)
            if number in self._suspects:
                router.suspicion.answered(number, key.id, now)
            if pool in router.conditions.failing:
                origin = router.sent.origin(number)
        if entry.usage is not None and pool in router.pools:
            self.usage.take(router.pools[pool], entry)
            if number is not None and entry.usage.prompt is not None:
                router.scales.told(number, entry.usage.prompt)
                tokens = router.chat_tokens.pop(number, None)
                if tokens is not None and self._on_chat is not None:
                    self._on_chat(pool, key, tokens, entry.usage.prompt)
        answer_s = self._times.take(entry, number)
        if answer_s is not None:
            self._began(entry, key, number, answer_s)
        first_byte_s = None if number is None or entry.attempts > 1 else entry.first_byte_s
        self.blamed[pool, _NO_BLAME] += 1
        speed = answer_speed(entry)
        self._well(pool, key, first_byte_s, answer_s, speed, 1, origin, client, now)
        if self._on_judged is not None:
            self._on_judged(
                Judged(
                    pool,
                    key,
                    _EFFECT_GOOD,
                    first_byte_s,
                    answer_s,
                    speed,
                    origin=origin,
                    client=client,
                )
            )

    def _time(
        self, entry: Entry, pool: str, key: EndpointKey, number: int | None, now: float
    ) -> None:
        """Learn from the first byte of an answer that has not ended well, or not yet."""
        first_byte_s = self._times.take(entry, number)
        if first_byte_s is not None:
            self._learner.answered(pool, key, first_byte_s, None, now)
            self._began(entry, key, number, first_byte_s)

    def _time_left(
        self, entry: Entry, pool: str, key: EndpointKey | None, number: int, now: float
    ) -> None:
        """Learn from an answer that its caller left; forget the request."""
        began = entry.answer_bytes and 0 < entry.status < FIRST_ERROR  # else headers alone came
        if began and key is not None and entry.ended is Ended.LEFT:
            self._time(entry, pool, key, number, now)
        self._times.forget(number)

    def _began(
        self, entry: Entry, key: EndpointKey, number: int | None, first_byte_s: float
    ) -> None:
        if number is not None and entry.status < FIRST_ERROR:
            self._router.began(number, key, first_byte_s)

    def hung(self, now: float) -> list[Hung]:
        """Return the requests that stand, without headers of an answer, on hung replicas."""
        conditions = self._router.conditions
        if not conditions.frozen:
            return []
        found = []
        for number, stands in self._standing:
            mute = conditions.hung(stands, now)
            if mute is not None and not stands.headed:
                found.append(Hung(number, self._failed.read(number), mute))
        return found

    # --- Failures and retries -------------------------------------------------------------------

    def _with_siblings(
        self, entry: Entry, pool: str, key: EndpointKey | None, number: int | None, now: float
    ) -> str:
        """Judge all attempts of a request that failed or was retried; return the outcome."""
        sent_s, since = entry.delivered_at_s, now - entry.lasted_s
        given = None if sent_s is None else min(since + sent_s, now)
        last = Tried(attempt_of(entry), entry.ended_unix_s - entry.lasted_s, since, given)
        good = key is not None and entry.ended is _DONE and is_good(entry.status, entry.grpc_status)
        before = [] if number is None else self._failed.take(number)
        if not good and before and len(before) >= entry.attempts:
            last = before.pop()
        else:
            if number is not None:
                self._suspect(pool, last.attempt, number, now)
                self._missed(pool, last.attempt, number, now)
            if not before:
                guessed = passed_over(entry)
                before = [last._replace(attempt=each) for each in guessed]
        alike = all_alike([*(each.attempt for each in before), last.attempt])
        for each in before:
            if each.outcome is None:
                evidence = self._evidence(
                    pool, each, alike=alike, sibling_well=good, unreadable=entry.unreadable
                )
                self._convict(pool, evidence, number, each, now)
        if number is not None and not (good and key is not None):
            self._time_left(entry, pool, key, number, now)
            self._resolved(last.attempt, key, number)
        if key is not None and last.attempt.reached and entry.attempts > 1:
            self.retried += entry.served != entry.picks.partition(",")[0]
            if number is not None:
                self._router.starts.served(number, key, now)
        if good and key is not None:
            self._good(entry, pool, key, number, now)
            return GOOD
        evidence = self._evidence(pool, last, alike=alike, unreadable=entry.unreadable)
        first_byte_s = entry.first_byte_s if last.attempt.ended is _DONE else None
        return last.outcome or self._convict(pool, evidence, number, last, now, first_byte_s)

    def _resolved(self, attempt: Attempt, key: EndpointKey | None, number: int) -> None:
        """Tell what an answer that is not good leaves of the prompt in the replica's cache."""
        if key is not None and keeps_prompt(attempt):
            self._router.confirmed(number, key)
        else:
            self._router.rejected(number)

    def _suspect(self, pool: str, attempt: Attempt, number: int, now: float) -> None:
        """Tell the router what an attempt says of a replica's death, and of who is to blame."""
        key = None if attempt.address is None else self._at(pool, attempt.address)
        if key is None:
            return
        suspicion = self._router.suspicion
        if suspected_death(attempt):
            suspicion.died(number, key.id, now)
        elif attempt.ended is Ended.UNREACHED:
            suspicion.gone(key.id, now)
        elif survived(attempt):
            suspicion.answered(number, key.id, now)
        elif attempt.ended is Ended.LEFT and attempt.read is not False:
            suspicion.left(key.id, now)

    def _missed(self, pool: str, attempt: Attempt, number: int, now: float) -> None:
        if lacks_model(attempt) and attempt.address is not None:
            key = self._at(pool, attempt.address)
            if key is not None:
                self._router.placement.missed(number, key, now)

    def _evidence(
        self,
        pool: str,
        tried: Tried,
        *,
        alike: bool = False,
        sibling_well: bool = False,
        unreadable: bool = False,
    ) -> Evidence:
        router, address = self._router, tried.attempt.address
        key = None if address is None else self._at(pool, address)
        if key is None:
            return Evidence(tried.attempt, alike, sibling_well, unreadable=unreadable)
        return Evidence(
            tried.attempt,
            alike,
            sibling_well,
            router.registry.restarted_since(key, tried.began_unix_s),
            router.conditions.answered_since(pool, key, tried.since),
            unreadable,
        )

    def _convict(
        self,
        pool: str,
        evidence: Evidence,
        number: int | None,
        tried: Tried,
        now: float,
        first_byte_s: float | None = None,
    ) -> str:
        """Apply the law to one attempt; return its outcome."""
        rule, attempt = ruling(evidence), evidence.attempt
        effect = rule.effect
        key = None if attempt.address is None else self._at(pool, attempt.address)
        if key is None:
            return rule.outcome if rule.blame is Blame.US else UNKNOWN
        self.blamed[pool, rule.blame] += 1
        if number is not None and tried.given is not None and abandons(attempt):
            ticket = self._router.sent.goes_on(number)
            if ticket is not None:
                self._router.registry.abandoned.left(ticket, key, tried.given, now)
        if effect is Effect.SILENT:
            first_byte_s = now - tried.since
        elif effect is not Effect.AT_ONCE and effect is not Effect.BY_ORIGIN:
            first_byte_s = None
        if effect is not Effect.NOTHING or self._router.conditions.ejects(pool):
            by_origin = effect is Effect.BY_ORIGIN
            by_client = by_origin or effect is Effect.SILENT
            self._judged(
                Judged(
                    pool,
                    key,
                    effect,
                    first_byte_s,
                    answered=attempt.answered and attempt.ended is _DONE,
                    origin=self._origin(number) if by_origin else 0,
                    client=self._router.sent.client(number) if by_client else UNKNOWN_CLIENT,
                ),
                now,
            )
        return rule.outcome

    def _origin(self, number: int | None) -> int:
        """Return a request's origin: what it names, else its body as far as it is kept."""
        origin = self._router.sent.origin(number)
        if origin == ANONYMOUS and number is not None:
            origin = number_of(self._router.suspicion.identity(number))
        return origin

    # --- Judgements -----------------------------------------------------------------------------

    def _judged(self, judged: Judged, now: float) -> None:
        self.follow(judged, now)
        if self._on_judged is not None:
            self._on_judged(judged)

    def follow(self, judged: Judged, now: float) -> None:
        """Apply what the law made of an attempt, in this worker or another one."""
        conditions = self._router.conditions
        pool, key, effect, first_byte_s, answer_s, bytes_per_s, answered, times, *whose = judged
        origin, client = whose
        if effect is _EFFECT_GOOD:
            self._well(pool, key, first_byte_s, answer_s, bytes_per_s, times, origin, client, now)
        elif effect is Effect.ANSWERED or effect is Effect.NOTHING:
            conditions.undecided(pool, key)
        elif effect is Effect.ALIVE:
            conditions.alive(key, now)
            conditions.undecided(pool, key)
        elif effect is Effect.SILENT:
            conditions.kept_waiting(key, first_byte_s or 0.0, now, client)
        else:
            by = origin if effect is Effect.BY_ORIGIN else None
            conditions.bad(
                pool, key, now, answered=answered, after_s=first_byte_s, origin=by, client=client
            )

    def _well(
        self,
        pool: str,
        key: EndpointKey,
        first_byte_s: float | None,
        answer_s: float | None,
        bytes_per_s: float | None,
        times: int,
        origin: int,
        client: int,
        now: float,
    ) -> None:
        conditions = self._router.conditions
        conditions.good(pool, key, first_byte_s, now, times, client)
        self._learner.answered(pool, key, answer_s, bytes_per_s, now)
        if origin:
            conditions.well(pool, key, origin, now, client)

    def _number(self, ticket: str) -> int | None:
        text = ticket[len(self._life) :]
        return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else None
