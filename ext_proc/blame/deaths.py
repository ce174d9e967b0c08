"""Requests of death: which may have killed replicas, where they may run, and which are refused.

A body is known by its fingerprint (``fingerprint``), a replica by its endpoint id. Bodies that
differ by a few bytes are of one *kind* (``alike``), known by the fingerprint of the first suspect
among them. A caller is known by a digest of its name or address.

Rules:

1. A death of a replica is the set of requests that it had read and that broke without an answer
   within ``DEATH_S`` of the first of them. It counts for ``WINDOW_S``. After ``DEATH_S`` it is
   complete. It is confirmed if the replica restarted or could not be reached from ``DEATH_S``
   before it to ``CONFIRM_S`` after it: one broken connection alone may be the network's fault.
2. A death makes suspects, never culprits. From one death follows only that its suspects are not
   sent to replicas that are tried again after an ejection, and that no second replica reads a
   request of their kinds, nor one of a caller (rule 8) that is the only one with uncleared suspects
   in a confirmed death.
3. A death has an unknown suspect if a broken request had no fingerprint, if a caller left a request
   on that replica up to ``LEFT_S`` before it, or if its suspects exceed a bound. The caller of a
   request without a fingerprint is a suspect all the same; no answer clears it of that.
4. A fingerprint or a kind with uncleared suspects in deaths of two different replicas is a member,
   and all requests of it are *confined*: they run only on replicas that died with it, so that no
   content takes more than these. Such a replica must be back for certain, because a proxy that
   finds it unhealthy falls back to another one: it answered a request ``DEATH_S`` or more after
   its last death, or its readiness probe or its page, which failed then, has not for ``BACK_S``. It
   runs one confined request at a time. A confined request waits while another copy of it runs, and
   a fingerprint until its deaths are complete. It must not be sent again once a replica has read
   it. A kind that killed one replica twice waits until that is forgotten, so that its variants do
   not kill the same replicas as often as they are back. A kind of which most requests are is not
   confined: no other request would be left to protect.
5. Any answer to a suspect, from any replica, clears its fingerprint of all deaths so far and lifts
   its refusal, and nothing else: an answer to a harmless near copy says nothing of the others. It
   remains in the sets of rule 6, so clearing never turns one of several members into a single one.
6. A member is condemned, i.e. refused for ``REFUSED_S``, if the complete, confirmed deaths that it
   is a suspect of concern two replicas or more, it is the only suspect common to them, one of them
   at least has no unknown suspect, and, where all of them happened within ``TOGETHER_S``, nothing
   else died in any of them. Replicas that die together and take many requests with them are more
   often a machine's or an operator's doing: there only a further death, alone, condemns.
   A member of ``MANY_DEATHS`` deaths needs no confirmation of them.
7. A fingerprint that some replica has answered recently is passed as ``answered`` and is no
   suspect, but counts as one of the suspects that rule 6 compares.
8. A caller is in question if it sent an uncleared suspect of a member kind, or uncleared suspects
   of deaths of two different replicas that are confirmed, or in which several requests broke. All
   requests of a caller in question are confined as those of a kind are, unless that would hold up
   others: a single caller in question is confined if it sends at most ``MAX_SHARE`` of the
   requests; several are, those of most deaths first and then the smallest, as long as they send at
   most ``MAX_SHARE_OF_SEVERAL`` together.
9. At most ``MAX_DEATHS`` deaths are kept, the oldest are dropped first, and ``MAX_OF_REPLICA`` of
   one replica; at most ``MAX_SUSPECTS`` suspects of all deaths, ``MAX_TRIALS`` running members and
   ``MAX_CONDEMNED`` refused fingerprints. Beyond these bounds less is refused, never more.

Times are arguments: monotonic seconds of one machine, which all its workers share. The same calls
in nearly the same order give the same verdicts, so each worker keeps its own copy.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.blame.fingerprint import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

DEATH_S: Final = 2.0
WINDOW_S: Final = 60.0
REFUSED_S: Final = 60.0
CONFIRM_S: Final = 10.0
LEFT_S: Final = 5.0
TOGETHER_S: Final = 2.0
AGAIN_S: Final = 0.25
"""Callers in question are found out again so long after something was cleared."""
BACK_S: Final = 10.0
"""Time in which a proxy finds that a replica is healthy again: two checks of 5 s."""
VERDICT_S: Final = 2.0
"""Time that the log may take to tell how a member's request ended."""
NEVER: Final = float("-inf")
MANY_DEATHS: Final = 3
MAX_DEATHS: Final = 256
MAX_OF_REPLICA: Final = 4
MAX_SUSPECTS: Final = 16_384
MAX_MARKS: Final = 4_096
"""Kinds and callers of one death from which on callers of unread requests are not kept."""
MAX_TRIALS: Final = 1_024
MAX_CONDEMNED: Final = 1_024
MAX_SHARE: Final = 1 / 2
MAX_SHARE_OF_SEVERAL: Final = 1 / 16
UNREAD: Final = b"unread:"
"""How the name of all unread requests of a caller begins, which runs in place of a fingerprint."""
_TWO: Final = 2
_KIND: Final = b"kind:"
_CALLER: Final = b"caller:"
_STRANGER: Final = _CALLER
"""Stands for all callers that are not known."""


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


class Who(NamedTuple):
    """What is known of a request."""

    fingerprint: bytes | None
    """``None`` = its body was not read to its end."""
    kinds: tuple[bytes, ...] = ()
    """Fingerprints that name its kinds; empty = the one of its own fingerprint."""
    caller: bytes | None = None
    """Digest of its caller; ``None`` = unknown."""

    @property
    def name(self) -> bytes | None:
        """What the request is called while it runs; ``None`` = nothing is known of it."""
        if self.fingerprint is not None:
            return self.fingerprint
        return None if self.caller is None else (UNREAD + self.caller)[: len(self.caller)]

    def kind_marks(self) -> list[bytes]:
        """Return the marks of the request's kinds, or of its own."""
        kinds = self.kinds or (() if self.fingerprint is None else (self.fingerprint,))
        return [_KIND + each for each in kinds]

    def caller_mark(self) -> bytes:
        """Return the mark of the request's caller."""
        return _STRANGER if self.caller is None else _CALLER + self.caller


UNKNOWN_REQUEST: Final = Who(None)
NO_CALLERS: Final[Mapping[bytes, float]] = MappingProxyType({})


class _Death:
    __slots__ = ("began", "confirmed", "marks", "replica", "suspects", "unknown")

    def __init__(self, replica: str, began: float, *, confirmed: bool, unknown: bool) -> None:
        self.replica = replica
        self.began = began
        self.confirmed = confirmed
        self.unknown = unknown
        self.suspects: dict[bytes, Who] = {}
        """All that are known, also those that are cleared."""
        self.marks: dict[bytes, set[bytes]] = {}
        """Uncleared suspects by kind and caller."""

    @property
    def is_sure(self) -> bool:
        """Whether it is confirmed, or several requests broke, which idle connections do not."""
        return self.confirmed or len(self.suspects) >= _TWO


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
        self._marked: dict[bytes, list[_Death]] = {}
        """Deaths with uncleared suspects of each kind and each caller."""
        self._callers: frozenset[bytes] | None = None
        """Callers in question; ``None`` = to be found out again."""
        self._found_at = NEVER
        """When they were found out."""
        self._cleared = False
        """Something was cleared since."""
        self._probed: dict[str, float] = {}
        """When a replica was last not ready, or its page could not be read or told of a restart."""
        self._last: dict[str, float] = {}
        """When a replica died last."""
        self._alive: dict[str, float] = {}
        """When a replica last answered a request, for those that had died."""
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
        for kept in (self._of, self._marked, self._gone, self._left, self._last, self._trials):
            kept.clear()
        self._alive.clear()
        self._probed.clear()
        self.condemned.clear()
        self._callers = None
        self._deaths.clear()
        self._new.clear()
        self._size, self.active = 0, False

    @property
    def suspects(self) -> int:
        """Number of fingerprints held against."""
        return len(self._of)

    # --- What happened --------------------------------------------------------------------------

    def died(self, replica: str, who: Who, at: float, *, answered: bool = False) -> None:
        """Note a request that a replica had read and that broke without an answer.

        Args:
            replica: Id of the endpoint.
            who: What is known of the request.
            at: When it was noticed, monotonic seconds.
            answered: Whether the same body was answered recently (rule 7).
        """
        death, fingerprint = self._death(replica, at), who.fingerprint
        if fingerprint is None:
            death.unknown = True
            if who.caller is not None and who.name is not None and len(death.marks) < MAX_MARKS:
                self._mark(death, who.name, [who.caller_mark()])
            return
        known = death.suspects.get(fingerprint)
        if known is None:
            if self._size >= MAX_SUSPECTS:
                death.unknown = True
                return
            self._size += 1
            death.suspects[fingerprint] = who
            if answered:
                return
            self._of.setdefault(fingerprint, []).append(death)
        elif death not in self._of.get(fingerprint, ()):
            return
        self._mark(death, fingerprint, [*who.kind_marks(), who.caller_mark()])

    def _mark(self, death: _Death, name: bytes, marks: list[bytes]) -> None:
        self._callers = None
        for mark in marks:
            if mark not in death.marks:
                death.marks[mark] = set()
                self._marked.setdefault(mark, []).append(death)
            death.marks[mark].add(name)

    def _unmark(self, death: _Death, mark: bytes) -> None:
        """Drop a mark of a death of which no uncleared suspect has it any more."""
        self._cleared = True
        del death.marks[mark]
        deaths = self._marked[mark]
        deaths.remove(death)
        if not deaths:
            del self._marked[mark]

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
        _note(self._last, replica, at)
        self.active = True
        self.counted += 1
        return death

    def left(self, replica: str, at: float) -> None:
        """Note that a caller left a request that a replica had not answered."""
        _note(self._left, replica, at)
        for each in self._deaths:
            if each.replica == replica and abs(at - each.began) <= DEATH_S:
                each.unknown = True

    def gone(self, replica: str, at: float, *, probe: bool = False) -> None:
        """Note that a replica restarted, or could not be reached.

        Args:
            replica: Id of the endpoint.
            at: When it was noticed, monotonic seconds.
            probe: Its readiness probe or its page told, which are asked again and again.
        """
        _note(self._gone, replica, at)
        self._callers = None
        if probe:
            _note(self._probed, replica, at)
        for each in self._deaths:
            if each.replica == replica and -DEATH_S <= at - each.began <= CONFIRM_S:
                each.confirmed = True

    def alive(self, replica: str, at: float) -> None:
        """Note that a replica answered a request."""
        if replica in self._last:
            _note(self._alive, replica, at)

    def gone_at(self, replica: str) -> float:
        """Return when a replica was last noted to be gone; minus infinity = never."""
        return self._gone.get(replica, NEVER)

    def left_at(self, replica: str) -> float:
        """Return when a caller was last noted to leave; minus infinity = never."""
        return self._left.get(replica, NEVER)

    def answered(self, fingerprint: bytes) -> bool:
        """Clear a fingerprint that a replica answered; return whether anything was held."""
        deaths = self._of.pop(fingerprint, ())
        for death in deaths:
            for mark in [key for key, names in death.marks.items() if fingerprint in names]:
                death.marks[mark].discard(fingerprint)
                if not death.marks[mark]:
                    self._unmark(death, mark)
        self._trials.pop(fingerprint, None)
        return self.condemned.pop(fingerprint, None) is not None or bool(deaths)

    def holds(self, fingerprint: bytes) -> bool:
        """Return whether anything is held against a fingerprint."""
        return fingerprint in self._of or fingerprint in self.condemned

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
        free = self.may_run(fingerprint, now)
        return SuspectStanding.MEMBER if free else SuspectStanding.WAITS

    def may_run(self, fingerprint: bytes, now: float) -> bool:
        """Return whether no copy of a confined request runs, nor awaits its verdict."""
        trial = self._trials.get(fingerprint)
        if trial is None:
            return len(self._trials) < MAX_TRIALS
        return trial.ended_at is not None and now - trial.ended_at >= VERDICT_S

    def confined(
        self,
        who: Who,
        now: float,
        shares: Mapping[bytes, float] = NO_CALLERS,
        is_common: Callable[[bytes], bool] = lambda _: False,
    ) -> frozenset[str] | None:
        """Return the replicas that alone may run a request now; ``None`` = any may (rule 4).

        Args:
            who: The request.
            now: Monotonic seconds.
            shares: Shares of callers in the pool's latest requests; 0 for those that it lacks.
            is_common: Returns whether most of the pool's latest requests are of a kind.
        """
        homes: list[set[str]] = []
        if who.fingerprint is not None:
            deaths = self._current(who.fingerprint, now)
            if len(replicas := _replicas(deaths, now)) >= _TWO:
                homes.append(replicas)
        for mark in who.kind_marks():
            marked = self._marked.get(mark)
            if marked is None:
                continue
            replicas = _replicas(marked, now)
            if len(replicas) >= _TWO and not is_common(mark[len(_KIND) :]):
                homes.append(_home(marked, now))
        if who.caller is not None:
            mark = who.caller_mark()
            if mark in self._marked and mark in self._confined_callers(now, shares):
                homes.append(_home(self._marked[mark], now))
        if not homes:
            return None
        return frozenset(each for each in set.intersection(*homes) if self._is_back(each, now))

    def _is_back(self, replica: str, now: float) -> bool:
        """Return whether a replica is certainly back after its last death (rule 4)."""
        last = self._last.get(replica, NEVER)
        if self._alive.get(replica, NEVER) - last >= DEATH_S:
            return True
        told = self._probed.get(replica, NEVER) >= last - DEATH_S
        return told and now - max(last, self.gone_at(replica)) >= BACK_S

    def repeatable(
        self,
        who: Who,
        now: float,
        shares: Mapping[bytes, float] = NO_CALLERS,
        is_common: Callable[[bytes], bool] = lambda _: False,
    ) -> bool:
        """Return whether a second replica may read a request (rule 2); see ``confined``."""
        for mark in who.kind_marks():
            held = _replicas(self._marked.get(mark, ()), now)
            if held and not is_common(mark[len(_KIND) :]):
                return False
        if who.caller is None or shares.get(who.caller, 0.0) > MAX_SHARE:
            return True
        mark = who.caller_mark()
        return not any(
            each.confirmed and now - each.began <= WINDOW_S and self._only(mark, each)
            for each in self._marked.get(mark, ())
        )

    @staticmethod
    def _only(mark: bytes, death: _Death) -> bool:
        return all(each == mark for each in death.marks if each.startswith(_CALLER))

    def _confined_callers(self, now: float, shares: Mapping[bytes, float]) -> frozenset[bytes]:
        """Return the marks of the callers in question that are confined (rule 8)."""
        found = self._callers
        if found is None or (self._cleared and now - self._found_at >= AGAIN_S):
            found = self._callers = self._in_question(now)
            self._found_at, self._cleared = now, False
        if len(found) == 1:
            (only,) = found
            return found if shares.get(only[len(_CALLER) :], 0.0) <= MAX_SHARE else frozenset()
        left, kept = MAX_SHARE_OF_SEVERAL, set()
        ranked = [
            (-len(self._marked.get(mark, ())), shares.get(mark[len(_CALLER) :], 0.0), mark)
            for mark in found
        ]
        for _, share, mark in sorted(ranked):
            left -= share
            if left < 0.0:
                break
            kept.add(mark)
        return frozenset(kept)

    def _in_question(self, now: float) -> frozenset[bytes]:
        found = {
            mark
            for kind, deaths in self._marked.items()
            if kind.startswith(_KIND) and len(_replicas(deaths, now)) >= _TWO
            for death in deaths
            for mark, names in death.marks.items()
            if mark.startswith(_CALLER) and not names.isdisjoint(death.marks[kind])
        }
        for mark, deaths in self._marked.items():
            sure = (each for each in deaths if each.is_sure)
            if mark.startswith(_CALLER) and len(_replicas(sure, now)) >= _TWO:
                found.add(mark)
        found.discard(_STRANGER)
        return frozenset(found)

    def avoided(self, now: float) -> frozenset[str]:
        """Return the replicas to which no confined request may be sent now (rule 4)."""
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
            self._callers = None
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

    def kept(self) -> Iterator[tuple[str, float, bool, bool, list[tuple[Who, bool]]]]:
        """Yield each death: replica, begin, unknown, confirmed, and its suspects.

        Each suspect comes with whether the death is still held against it.
        """
        for each in self._deaths:
            suspects = [(who, each in self._of.get(key, ())) for key, who in each.suspects.items()]
            suspects += [
                (Who(None, (), mark[len(_CALLER) :]), True)
                for mark, names in each.marks.items()
                if mark.startswith(_CALLER) and any(name.startswith(UNREAD) for name in names)
            ]
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
            "kinds_confined": sum(
                key.startswith(_KIND) and len(_replicas(deaths, now)) >= _TWO
                for key, deaths in self._marked.items()
            ),
            "callers_in_question": len(self._in_question(now)),
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
        if len(set.intersection(*(set(each.suspects) for each in counted))) > 1:
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
        for mark in list(death.marks):
            self._unmark(death, mark)
        for fingerprint in death.suspects:
            against = self._of.get(fingerprint)
            if against is not None and death in against:
                against.remove(death)
                if not against:
                    del self._of[fingerprint]


def _replicas(deaths: Iterable[_Death], now: float) -> set[str]:
    """Return the replicas of the deaths that count."""
    return {each.replica for each in deaths if now - each.began <= WINDOW_S}


def _home(deaths: Iterable[_Death], now: float) -> set[str]:
    """Return the replicas that died; none where one of them died again."""
    died = [each.replica for each in deaths if now - each.began <= WINDOW_S]
    return set(died) if len(died) == len(set(died)) else set()


def _note(times: dict[str, float], replica: str, at: float) -> None:
    """Keep the latest time of a replica; at most ``MAX_DEATHS`` replicas, the oldest go first."""
    times.pop(replica, None)
    times[replica] = at
    if len(times) > MAX_DEATHS:
        del times[next(iter(times))]
