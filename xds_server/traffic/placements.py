"""Which replica has which model, as pickers report it. Pure.

Rules:

1. A picker's last report counts until its stream ends. Of a replica that several pickers report on,
   the report of the one that asked last counts, until it is ``STALE_S`` old. For Envoys that choose
   by themselves it counts for ``LEFT_S``, also after the stream.
2. A pool shows the models that it lists; one that lists none shows all that its replicas name. A
   model that a whole listing does not name is UNAVAILABLE there; an unknown one has no state.
3. At most ``MAX_SHOWN`` rows are returned.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

STALE_S: Final = 90.0
LEFT_S: Final = 600.0
"""A model that was moved meanwhile is found where it was, so this ends."""
MAX_LEFT: Final = 4096
"""Most replicas of which a picker that is gone has reported."""
MAX_SHOWN: Final = 100_000
UNAVAILABLE: Final = "UNAVAILABLE"
_ABSENT: Final = "not listed"


class PlacedState(NamedTuple):
    """A version of a model on a replica."""

    state: str
    """Empty = unknown."""
    reason: str
    for_s: float | None
    """Seconds since it was first seen in this state."""


class ReplicaModels(NamedTuple):
    """What one replica has."""

    age_s: float
    whole: bool
    models: Mapping[tuple[str, str], PlacedState]
    """By model and version."""


class ShownModel(NamedTuple):
    """A version of a model on a replica of a pool."""

    endpoint: str
    model: str
    version: str
    state: PlacedState
    age_s: float | None
    """Seconds since the replica was asked; ``None`` = nothing is known of it."""


_UNKNOWN: Final = PlacedState("", "", None)


class PlacementBook:
    """What pickers report of placement; see the module's rules.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_picker: dict[str, tuple[float, Mapping[str, ReplicaModels]]] = {}
        self.changes = 0
        """How often something was reported, or a picker left."""
        self._left: dict[str, tuple[float, ReplicaModels]] = {}
        """By endpoint id: when a picker that is gone reported last, and what."""

    def take(self, picker: str, replicas: Mapping[str, ReplicaModels]) -> None:
        """Replace what a picker reports, by endpoint id."""
        self._by_picker[picker] = self._clock(), replicas
        self.changes += 1

    def gone(self, picker: str) -> None:
        """Forget a picker whose stream has ended."""
        at, replicas = self._by_picker.pop(picker, (0.0, {}))
        self.changes += 1
        for name, each in replicas.items():
            known = self._left.pop(name, None)
            newer = known is None or at - each.age_s > known[0] - known[1].age_s
            self._left[name] = (at, each) if known is None or newer else known
        for name in list(self._left)[: max(0, len(self._left) - MAX_LEFT)]:
            del self._left[name]

    def merged(self) -> dict[str, ReplicaModels]:
        """Return what each replica has, by endpoint id."""
        return self._newest(STALE_S, {})

    def last(self) -> dict[str, ReplicaModels]:
        """Return what each replica had when a picker asked it last, by endpoint id."""
        return self._newest(LEFT_S, self._left)

    def _newest(
        self, most_s: float, left: Mapping[str, tuple[float, ReplicaModels]]
    ) -> dict[str, ReplicaModels]:
        now = self._clock()
        found: dict[str, ReplicaModels] = {}
        reports = [(name, at, each) for name, (at, each) in left.items()]
        for at, replicas in self._by_picker.values():
            reports += [(name, at, each) for name, each in replicas.items()]
        for name, at, each in reports:
            age_s, known = each.age_s + now - at, found.get(name)
            if age_s <= most_s and (known is None or age_s < known.age_s):
                found[name] = each._replace(age_s=age_s)
        return found


def shown(
    replicas: Mapping[str, ReplicaModels], endpoints: Iterable[str], models: Iterable[str]
) -> Iterator[ShownModel]:
    """Yield the rows of one pool, by model, version and replica.

    Args:
        replicas: What each replica has.
        endpoints: The pool's replicas.
        models: The models that the pool lists; none = all.
    """
    names, wanted = sorted(endpoints), set(models)
    here = {name: replicas[name] for name in names if name in replicas}
    rows = {row for each in here.values() for row in each.models if not wanted or row[0] in wanted}
    rows |= {(model, "") for model in wanted - {model for model, _ in rows}}
    versioned = {model for model, version in rows if version}
    # A replica that never loaded a model names no version of it.
    rows = {(model, version) for model, version in rows if version or model not in versioned}
    every = ((model, version, name) for model, version in sorted(rows) for name in names)
    for model, version, name in islice(every, MAX_SHOWN):
        known = here.get(name)
        if known is None:
            yield ShownModel(name, model, version, _UNKNOWN, None)
            continue
        state = known.models.get((model, version)) or known.models.get((model, ""))
        if state is None:
            state = PlacedState(UNAVAILABLE, _ABSENT, None) if known.whole else _UNKNOWN
        yield ShownModel(name, model, version, state, known.age_s)
