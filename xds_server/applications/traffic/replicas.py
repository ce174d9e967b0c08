"""The states of replicas, as all pickers see them. Pure.

Rules:

1. A picker's last states count until its stream ends or they are ``STALE_S`` old. The workers of a
   picker count as one, which has the conditions of each: a worker sees that a replica is frozen by
   its own requests, so the others need not know it. Pickers that do not report states (older ones)
   are as if they were not there.
2. A replica has each condition that any picker reports, with the number of pickers that do; cause
   and time left are those of the picker that leaves it alone for longest. Its readings are as old
   as the oldest that a picker uses, its share in slow start the smallest.
3. A replica is *usable* if it does not drain, and fewer than half of the pickers that report leave
   it alone. What no picker reports on is taken for usable: nothing is known against it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xds_server.applications.traffic.picker_runs import Key

STALE_S: Final = 15.0
SILENT: Final = "silent"
FROZEN: Final = "frozen"
EJECTED: Final = "ejected"
HALF_OPEN: Final = "half-open"
TOLD: Final = "told"
_DETAILS: Final = frozenset({"dead-backend", "sinkhole"})
"""Conditions that say more of ``ejected``."""


class Condition(NamedTuple):
    """A condition of a replica."""

    name: str
    cause: str = ""
    left_s: float | None = None
    """Seconds until it ends by itself; ``None`` = it does not."""
    pickers: int = 1
    """Number of pickers that report it."""
    for_s: float | None = None
    """Seconds since it was first seen; ``None`` = not known."""


class ToldLimit(NamedTuple):
    """The limit of the requests in flight for a model of a replica."""

    model: str
    """Empty = of the replica as a whole."""
    most: int
    source: str
    """``set``, ``declared``, ``observed`` or ``learned``."""


class ToldQueue(NamedTuple):
    """The requests of a pool that wait in pickers."""

    requests: int
    wait_s: float | None
    """How long one that comes now is expected to wait; ``None`` = not known."""


class Reported(NamedTuple):
    """A replica as one picker sees it."""

    conditions: tuple[Condition, ...] = ()
    reading_age_s: float | None = None
    ramp_percent: int | None = None
    """Share of its weight in slow start; ``None`` = it is not in slow start."""
    notes: tuple[Condition, ...] = ()
    """What is wrong with it that does not keep requests from it."""
    limits: tuple[ToldLimit, ...] = ()


class State(NamedTuple):
    """A replica as all pickers see it."""

    conditions: tuple[Condition, ...] = ()
    reading_age_s: float | None = None
    ramp_percent: int | None = None
    pickers: int = 0
    """Number of pickers that report on it; 0 = nothing is known."""
    notes: tuple[Condition, ...] = ()
    """What is wrong with it that does not keep requests from it."""
    limits: tuple[ToldLimit, ...] = ()
    """Of each model the lowest that a picker keeps."""

    @property
    def left_alone(self) -> bool:
        """Whether at least half of the pickers that report leave it alone."""
        most = max((each.pickers for each in self.conditions if each.name != SILENT), default=0)
        return most > 0 and 2 * most >= self.pickers


UNKNOWN: Final = State()


class ReplicaBook:
    """The states that pickers report; see the module's rules.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_picker: dict[str, tuple[float, str, Mapping[Key, Reported]]] = {}
        self._queues: dict[str, Mapping[str, ToldQueue]] = {}

    def take(
        self,
        picker: str,
        states: Mapping[Key, Reported],
        group: str = "",
        queues: Mapping[str, ToldQueue] = MappingProxyType({}),
    ) -> None:
        """Replace what a picker reports.

        Args:
            picker: Its id.
            states: The replicas, by pool and endpoint id.
            group: The picker of which it is a worker; empty = of none.
            queues: What waits in the picker, by pool.
        """
        self._by_picker[picker] = self._clock(), group or picker, states
        self._queues[picker] = queues

    def gone(self, picker: str) -> None:
        """Forget a picker whose stream has ended."""
        self._by_picker.pop(picker, None)
        self._queues.pop(picker, None)

    def waiting(self, pool: str) -> ToldQueue:
        """Return what waits of a pool in all pickers, and the longest expected wait."""
        now = self._clock()
        found = [
            queues[pool]
            for picker, queues in self._queues.items()
            if pool in queues and now - self._by_picker[picker][0] <= STALE_S
        ]
        waits = [each.wait_s for each in found if each.wait_s is not None]
        return ToldQueue(sum(each.requests for each in found), max(waits, default=None))

    def ages(self) -> dict[str, float]:
        """Return the age of each picker's last states in seconds."""
        now = self._clock()
        return {picker: now - at for picker, (at, _, _) in self._by_picker.items()}

    def merged(self) -> dict[Key, State]:
        """Return the state of each replica on which any picker reports."""
        now = self._clock()
        groups: dict[str, dict[Key, State]] = {}
        for at, group, states in self._by_picker.values():
            passed = now - at
            if passed <= STALE_S:
                known = groups.setdefault(group, {})
                for key, reported in states.items():
                    before, seen = known.get(key), _aged(reported, passed)
                    known[key] = seen if before is None else _as_one(merge(before, seen))
        found: dict[Key, State] = {}
        for known in groups.values():
            for key, seen in known.items():
                before = found.get(key)
                found[key] = seen if before is None else merge(before, seen)
        return found

    def left_alone(self) -> dict[Key, str]:
        """Return the replicas that at least half of the pickers leave alone, and why."""
        return {
            key: words(state, draining=False, held=False, in_flight=None)
            for key, state in self.merged().items()
            if state.left_alone
        }


def _as_one(state: State) -> State:
    """Return what several workers see together as the state that their picker sees."""
    conditions = tuple([each._replace(pickers=1) for each in state.conditions])
    notes = tuple([each._replace(pickers=1) for each in state.notes])
    return state._replace(conditions=conditions, pickers=1, notes=notes)


def _aged(reported: Reported, passed_s: float) -> State:
    """Return one picker's report as it is ``passed_s`` seconds later."""
    conditions, age, ramp, notes, limits = reported
    if conditions:
        conditions = tuple([_later(each, passed_s) for each in conditions])
    if notes:
        notes = tuple([_later(each, passed_s) for each in notes])
    return State(conditions, None if age is None else age + passed_s, ramp, 1, notes, limits)


def _later(condition: Condition, passed_s: float) -> Condition:
    left, since = condition.left_s, condition.for_s
    return condition._replace(
        left_s=None if left is None else max(0.0, left - passed_s),
        for_s=None if since is None else since + passed_s,
    )


def merge(one: State, other: State) -> State:
    """Return what two groups of pickers see together; associative and commutative."""
    conditions = _joined(one.conditions, other.conditions)
    notes = _joined(one.notes, other.notes)
    limits = one.limits or other.limits
    if one.limits and other.limits and one.limits != other.limits:
        lowest: dict[str, ToldLimit] = {}
        for each in sorted((*one.limits, *other.limits)):
            lowest.setdefault(each.model, each)
        limits = tuple(lowest.values())
    return State(conditions, *_numbers(one, other), one.pickers + other.pickers, notes, limits)


def _joined(one: tuple[Condition, ...], other: tuple[Condition, ...]) -> tuple[Condition, ...]:
    if not one or not other:
        return one or other
    by_name = {each.name: each for each in one}
    for each in other:
        known = by_name.get(each.name)
        if known is None:
            by_name[each.name] = each
        else:
            first, pickers = max(known, each, key=_weight), known.pickers + each.pickers
            longest = max(known.for_s or 0.0, each.for_s or 0.0)
            by_name[each.name] = first._replace(pickers=pickers, for_s=longest or None)
    return tuple(by_name[name] for name in sorted(by_name))


def _numbers(one: State, other: State) -> tuple[float | None, int | None]:
    """Return the higher age of readings, and the smaller share in slow start."""
    age, ramp = one.reading_age_s, one.ramp_percent
    if age is None or (other.reading_age_s is not None and other.reading_age_s > age):
        age = other.reading_age_s
    if ramp is None or (other.ramp_percent is not None and other.ramp_percent < ramp):
        ramp = other.ramp_percent
    return age, ramp


def _weight(condition: Condition) -> tuple[float, str]:
    return -1.0 if condition.left_s is None else condition.left_s, condition.cause


def words(state: State, *, draining: bool, held: bool, in_flight: int | None) -> str:
    """Return the state of a replica in a few words, for operators.

    Args:
        state: As the pickers see it.
        draining: It drains by an operator's decision, or because it vanished.
        held: It has vanished, and stays until this is confirmed.
        in_flight: Requests in flight; ``None`` = unknown.
    """
    if draining:
        return "draining" if in_flight is None else f"draining, {in_flight} left"
    if held:
        return "held"
    by_name = {each.name: each for each in state.conditions}
    if by_name and not by_name.keys() <= {SILENT}:
        said = _condition(by_name)
        most = max(each.pickers for each in state.conditions if each.name != SILENT)
        return said if most == state.pickers else f"{said} ({most} of {state.pickers} pickers)"
    if SILENT in by_name:
        return SILENT
    if state.ramp_percent is not None:
        return f"ramping {state.ramp_percent} %"
    return "; ".join(noted(each) for each in state.notes) or "in use"


def span(seconds: float) -> str:
    """Return a duration in its largest unit: ``12 s``, ``3 min``, ``5 h``, ``2 days``."""
    for unit, size in (("days", 2 * 86_400.0), ("h", 2 * 3_600.0), ("min", 120.0)):
        if seconds >= size:
            return f"{seconds / (size / 2):.0f} {unit}"
    return f"{seconds:.0f} s"


def noted(note: Condition) -> str:
    """Return a note in words: its name, since when, and its cause."""
    name = note.name.replace("-", " ")
    if note.for_s is not None:
        name += f" for {span(note.for_s)}"
    return f"{name}: {note.cause}" if note.cause else name


def _condition(by_name: Mapping[str, Condition]) -> str:
    for name in (EJECTED, HALF_OPEN):
        ejected = by_name.get(name)
        if ejected is None:
            continue
        word = FROZEN if FROZEN in by_name else "half open" if name == HALF_OPEN else EJECTED
        if ejected.left_s is not None:
            word += f" {ejected.left_s:.0f} s more"
        return word if FROZEN in by_name or not ejected.cause else f"{word}: {ejected.cause}"
    name = next(each for each in by_name if each != SILENT and each not in _DETAILS)
    found = by_name[name]
    word = "told by other pickers" if name == TOLD else name.replace("-", " ")
    if found.for_s is not None:
        word += f" for {span(found.for_s)}"
    return f"{word}: {found.cause}" if found.cause else word
