"""Requests of death: which request bodies may have killed replicas, and which are refused for it.

A body is known by its fingerprint (``fingerprint``) and a replica by its endpoint id.

Rules:

1. A death of a replica is the set of requests that it had read and that broke without an answer
   within ``DEATH_S`` of the first of them. It counts for ``WINDOW_S``. After ``DEATH_S`` it is
   complete. It is confirmed if the replica restarted or could not be reached from ``DEATH_S``
   before it to ``CONFIRM_S`` after it: one broken connection alone may be the network's fault.
2. A death makes suspects, never culprits: nothing follows from one death but that its suspects are
   not sent to replicas that are tried again after an ejection.
3. A death has an unknown suspect if a broken request had no fingerprint, if a caller left a request
   on that replica up to ``LEFT_S`` before it, or if its suspects exceed a bound.
4. A suspect of deaths of two different replicas is a member. A member waits until its deaths are
   complete, and while another copy of it runs. Then one copy may run, on a replica that runs no
   other member and has not just died. It must not be sent again once a replica has read it.
5. Any answer to a suspect, from any replica, clears it of all deaths so far and lifts its refusal.
   It remains in the sets of rule 6, so clearing never turns one of several members into a single
   one.
6. A member is condemned, i.e. refused for ``REFUSED_S``, if the complete, confirmed deaths that it
   is a suspect of concern two replicas or more, it is the only suspect common to them, one of them
   at least has no unknown suspect, and, where all of them happened within ``TOGETHER_S``, nothing
   else died in any of them. Replicas that die together and take many requests with them are more
   often a machine's or an operator's doing: there only a further death, alone, condemns.
   A member of ``MANY_DEATHS`` deaths needs no confirmation of them.
7. A fingerprint that some replica has answered recently is passed as ``answered`` and is no
   suspect, but counts as one of the suspects that rule 6 compares.
8. At most ``MAX_DEATHS`` deaths are kept, the oldest are dropped first, and ``MAX_OF_REPLICA`` of
   one replica; at most ``MAX_SUSPECTS`` suspects of all deaths, ``MAX_TRIALS`` running members and
   ``MAX_CONDEMNED`` refused fingerprints. Beyond these bounds less is refused, never more.

Times are arguments: monotonic seconds of one machine, which all its workers share. The same calls
in nearly the same order give the same verdicts, so each worker keeps its own copy.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.blame.fingerprint import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

DEATH_S: Final = 2.0
WINDOW_S: Final = 60.0
REFUSED_S: Final = 60.0
CONFIRM_S: Final = 10.0
LEFT_S: Final = 5.0
TOGETHER_S: Final = 2.0
VERDICT_S: Final = 2.0
"""Time that the log may take to tell how a member's request ended."""
NEVER: Final = float("-inf")
MANY_DEATHS: Final = 3
MAX_DEATHS: Final = 256
MAX_OF_REPLICA: Final = 4
MAX_SUSPECTS: Final = 16_384
MAX_TRIALS: Final = 1_024
MAX_CONDEMNED: Final = 1_024
_TWO: Final = 2


class SuspectStanding(StrEnum):
    """What is held against a fingerprint."""

    CLEAR = "clear"
    SUSPECT = "suspect"
    """It was on one replica that died."""
    MEMBER = "member"
    """It was on several; one copy may run now, under the conditions of rule 4."""
    WAITS = "waits"
    """As ``MEMBER``, but no copy may run now."""
    CONDEMNED = "condemned"
    """It is refused."""


CLEAR: Final = SuspectStanding.CLEAR


class Condemned(NamedTuple):
    """A fingerprint that is refused from now on."""

    fingerprint: bytes
    replicas: tuple[str, ...]
    """Ids of the replicas that died with it."""


class _Death:
    __slots__ = ("began", "confirmed", "replica", "suspects", "unknown")

    def __init__(self, replica: str, began: float, *, confirmed: bool, unknown: bool) -> None:
        self.replica = replica
        self.began = began
        self.confirmed = confirmed
        self.unknown = unknown
        self.suspects: set[bytes] = set()


class _Trial:
    """A running copy of a member, or one whose verdict is not known yet."""

    __slots__ = ("ended_at", "owner", "replica")

    def __init__(self, replica: str, owner: int | None) -> None:
        self.replica = replica
        self.owner = owner
        self.ended_at: float | None = None


class Deaths:
    """Deaths of replicas and the standing of the requests that they had read."""

    def __init__(self) -> None:
        self._deaths: list[_Death] = []
        self._of: dict[bytes, list[_Death]] = {}
        """Deaths held against each suspect."""
        self._size = 0
        """Suspects in all deaths."""
        self._gone: dict[str, float] = {}
        """When a replica restarted or could not be reached, for the deaths that follow."""
        self._left: dict[str, float] = {}
        """When a caller last left a request on a replica."""
        self._trials: dict[bytes, _Trial] = {}
        self.condemned: dict[bytes, float] = {}
        """End of each refusal, monotonic seconds."""
        self.active = False
        """Whether anything is held against any fingerprint."""
        self.counted = 0
        """Deaths since the start, confirmed or not."""
        self._new: list[Condemned] = []
        """Condemned since the last sweep."""

    def __repr__(self) -> str:
        return (
            f"<Deaths {len(self._deaths)} suspects={len(self._of)} condemned={len(self.condemned)}>"
        )

    def clear(self) -> None:
        """Forget everything that is held."""
        for kept in (self._of, self._gone, self._left, self._trials, self.condemned):
            kept.clear()
        self._deaths.clear()
        self._new.clear()
        self._size, self.active = 0, False

    @property
    def suspects(self) -> int:
        """Number of fingerprints held against."""
        return len(self._of)

    # --- What happened --------------------------------------------------------------------------

    def died(
        self, replica: str, fingerprint: bytes | None, at: float, *, answered: bool = False
    ) -> None:
        """Note a request that a replica had read and that broke without an answer.

        Args:
            replica: Id of the endpoint.
            fingerprint: The request's, ``None`` = unknown.
            at: When it was noticed, monotonic seconds.
            answered: Whether the same body was answered recently (rule 7).
        """
        death = self._death(replica, at)
        if fingerprint is None:
            death.unknown = True
            return
        suspects = death.suspects
        if fingerprint not in suspects:
            if self._size >= MAX_SUSPECTS:
                death.unknown = True
                return
            self._size += 1
            suspects.add(fingerprint)
            if not answered:
                self._of.setdefault(fingerprint, []).append(death)

    def _death(self, replica: str, at: float) -> _Death:
        """Return the death under way of a replica, or begin one."""
        known = [each for each in self._deaths if each.replica == replica]
        for each in known:
            if abs(at - each.began) <= DEATH_S:
                return each
        if len(known) >= MAX_OF_REPLICA:
            self._drop(known[0])
        elif len(self._deaths) >= MAX_DEATHS:
            self._drop(self._deaths[0])
        death = _Death(
            replica,
            at,
            confirmed=at - self.gone_at(replica) <= DEATH_S,
            unknown=at - self.left_at(replica) <= LEFT_S,
        )
        self._deaths.append(death)
        self.active = True
        self.counted += 1
        return death

    def left(self, replica: str, at: float) -> None:
        """Note that a caller left a request that a replica had not answered."""
        _note(self._left, replica, at)
        for each in self._deaths:
            if each.replica == replica and abs(at - each.began) <= DEATH_S:
                each.unknown = True

    def gone(self, replica: str, at: float) -> None:
        """Note that a replica restarted, or could not be reached."""
        _note(self._gone, replica, at)
        for each in self._deaths:
            if each.replica == replica and -DEATH_S <= at - each.began <= CONFIRM_S:
                each.confirmed = True

    def gone_at(self, replica: str) -> float:
        """Return when a replica was last noted to be gone; minus infinity = never."""
        return self._gone.get(replica, NEVER)

    def left_at(self, replica: str) -> float:
        """Return when a caller was last noted to leave; minus infinity = never."""
        return self._left.get(replica, NEVER)

    def answered(self, fingerprint: bytes) -> bool:
        """Clear a fingerprint that a replica answered; return whether anything was held."""
        held = self._of.pop(fingerprint, None) is not None
        self._trials.pop(fingerprint, None)
        return self.condemned.pop(fingerprint, None) is not None or held

    # --- Members that run -----------------------------------------------------------------------

    def started(self, fingerprint: bytes, replica: str, owner: int | None = None) -> None:
        """Note that a copy of a member runs.

        Args:
            fingerprint: The member.
            replica: Id of the endpoint that it was sent to.
            owner: Number of the peer worker that sent it; ``None`` = this process.
        """
        self._trials[fingerprint] = _Trial(replica, owner)

    def ended(self, fingerprint: bytes, at: float) -> None:
        """Note that a member's copy ended; its verdict may follow."""
        trial = self._trials.get(fingerprint)
        if trial is not None:
            trial.ended_at = at

    def lost(self, owner: int) -> None:
        """Forget the running members of a peer worker that is gone."""
        for each in [key for key, trial in self._trials.items() if trial.owner == owner]:
            del self._trials[each]

    # --- Standing -------------------------------------------------------------------------------

    def standing(self, fingerprint: bytes, now: float) -> SuspectStanding:
        """Return the standing of a request that wants to run now."""
        if now < self.condemned.get(fingerprint, now):
            return SuspectStanding.CONDEMNED
        deaths = self._current(fingerprint, now)
        if len({each.replica for each in deaths}) < _TWO:
            return SuspectStanding.SUSPECT if deaths else CLEAR
        if any(now - each.began < DEATH_S for each in deaths):
            return SuspectStanding.WAITS
        if self._condemns(fingerprint, deaths, now):
            return SuspectStanding.CONDEMNED
        free = self._may_run(fingerprint, now)
        return SuspectStanding.MEMBER if free else SuspectStanding.WAITS

    def _may_run(self, fingerprint: bytes, now: float) -> bool:
        """Return whether no copy of a member runs, nor awaits its verdict."""
        trial = self._trials.get(fingerprint)
        if trial is None:
            return len(self._trials) < MAX_TRIALS
        return trial.ended_at is not None and now - trial.ended_at >= VERDICT_S

    def avoided(self, now: float) -> frozenset[str]:
        """Return the replicas to which no member may be sent now (rule 4)."""
        running = {each.replica for each in self._trials.values() if each.ended_at is None}
        dying = {each.replica for each in self._deaths if now - each.began < DEATH_S}
        return frozenset(running | dying)

    def sweep(self, now: float) -> list[Condemned]:
        """Drop what has expired, and condemn; call about once a second.

        Returns:
            What was condemned since the last call.
        """
        for death in [each for each in self._deaths if now - each.began > WINDOW_S]:
            self._drop(death)
        self.condemned = {each: until for each, until in self.condemned.items() if now < until}
        for fingerprint, trial in list(self._trials.items()):
            if trial.ended_at is not None and now - trial.ended_at >= VERDICT_S:
                del self._trials[fingerprint]
        for fingerprint, deaths in self._of.items():
            if len(deaths) >= _TWO and fingerprint not in self.condemned:
                self._condemns(fingerprint, deaths, now)
        self.active = bool(self._deaths or self.condemned)
        found, self._new = self._new, []
        return found

    def kept(self) -> Iterator[tuple[str, float, bool, bool, list[tuple[bytes, bool]]]]:
        """Yield each death: replica, begin, unknown, confirmed, and its suspects.

        Each suspect comes with whether the death is still held against it.
        """
        for each in self._deaths:
            suspects = [(one, each in self._of.get(one, ())) for one in each.suspects]
            yield each.replica, each.began, each.unknown, each.confirmed, suspects

    def running(self) -> Iterator[tuple[bytes, str]]:
        """Yield the members that this process runs, with their replicas."""
        for fingerprint, trial in self._trials.items():
            if trial.owner is None and trial.ended_at is None:
                yield fingerprint, trial.replica

    def describe(self, now: float) -> dict[str, object]:
        """Return deaths and refused fingerprints, ready for JSON."""
        return {
            "deaths": [
                {
                    "endpoint": each.replica,
                    "age_s": round(now - each.began, 1),
                    "suspects": len(each.suspects),
                    "unknown": each.unknown,
                    "confirmed": each.confirmed,
                }
                for each in self._deaths
            ],
            "suspects": len(self._of),
            "running": {shown(key): each.replica for key, each in self._trials.items()},
            "refused": {
                shown(key): {"for_s": round(until - now, 1)}
                for key, until in self.condemned.items()
                if now < until
            },
        }

    def _current(self, fingerprint: bytes, now: float) -> list[_Death]:
        known = self._of.get(fingerprint)
        return [each for each in known if now - each.began <= WINDOW_S] if known else []

    def _condemns(self, fingerprint: bytes, deaths: list[_Death], now: float) -> bool:
        """Condemn a fingerprint if rule 6 says so; return whether it is condemned."""
        many = len(deaths) >= MANY_DEATHS
        counted = [
            each for each in deaths if (each.confirmed or many) and now - each.began >= DEATH_S
        ]
        if len({each.replica for each in counted}) < _TWO or all(each.unknown for each in counted):
            return False
        if len(set.intersection(*(each.suspects for each in counted))) > 1:
            return False
        times = [each.began for each in counted]
        if max(times) - min(times) <= TOGETHER_S and any(
            each.unknown or len(each.suspects) > 1 for each in counted
        ):
            return False
        if len(self.condemned) >= MAX_CONDEMNED and fingerprint not in self.condemned:
            return False
        if fingerprint not in self.condemned:
            self._new.append(Condemned(fingerprint, tuple(sorted({d.replica for d in counted}))))
        self.condemned[fingerprint] = now + REFUSED_S
        return True

    def _drop(self, death: _Death) -> None:
        self._deaths.remove(death)
        self._size -= len(death.suspects)
        for fingerprint in death.suspects:
            against = self._of.get(fingerprint)
            if against is not None and death in against:
                against.remove(death)
                if not against:
                    del self._of[fingerprint]


def _note(times: dict[str, float], replica: str, at: float) -> None:
    """Keep the latest time of a replica; at most ``MAX_DEATHS`` replicas, the oldest go first."""
    times.pop(replica, None)
    times[replica] = at
    if len(times) > MAX_DEATHS:
        del times[next(iter(times))]
