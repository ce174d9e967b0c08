"""Which replica has which model, as pickers report it. Pure.

Rules:

1. A picker's last report counts until its stream ends. Of a replica that several pickers report on,
   the report of the one that asked last counts, until it is ``STALE_S`` old. For Envoys that choose
   by themselves it counts for ``LEFT_S``, also after the stream.
2. A pool shows the models that it lists; one that lists none shows all that its replicas name. A
   model that a whole listing does not name is UNAVAILABLE there; an unknown one has no state.
3. At most ``MAX_SHOWN`` rows are returned.
4. A replica that answers by another version than its variant's ``model_version``, and replicas of
   one variant without it that answer by different versions, are told (``unlike_versions``). Over
   HTTP the version of the variant only has to be READY there.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

STALE_S: Final = 90.0
LEFT_S: Final = 600.0
"""A model that was moved meanwhile is found where it was, so this ends."""
MAX_LEFT: Final = 4096
"""Most replicas of which a picker that is gone has reported."""
MAX_TOLD: Final = 8
"""Most replicas in one sentence."""
MAX_SHOWN: Final = 100_000
READY: Final = "READY"
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
    moved: int = 0
    """Requests that it may have answered by another version than their variant's."""

    def answers(self) -> dict[str, str]:
        """Return the highest version that is READY, by model: Triton's where none is named."""
        found: dict[str, str] = {}
        for (model, version), each in self.models.items():
            if each.state == READY and version.isdecimal():
                found[model] = max(version, found.get(model, version), key=int)
        return found


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
        for name, each in found.items():
            moved = (of[name].moved for _, of in self._by_picker.values() if name in of)
            found[name] = each._replace(moved=sum(moved))
        return found


class VersionedReplica(NamedTuple):
    """A replica of a variant."""

    id: str
    grpc: bool
    """Whether it is sent requests over gRPC."""
    models: ReplicaModels


def unlike_versions(
    where: str, wanted: str | None, replicas: Sequence[VersionedReplica], models: Collection[str]
) -> Iterator[str]:
    """Yield in words which replicas of a variant answer by which other version (rule 4).

    Args:
        where: Pool and variant, in words.
        wanted: The version of the variant; ``None`` = it has none.
        replicas: What its replicas have that do not drain.
        models: The models of the pool; none = all.
    """
    answers = {each.id: each.models.answers() for each in replicas}
    known = {model for each in answers.values() for model in each}
    for model in sorted(known & set(models) if models else known):
        here = {name: each[model] for name, each in answers.items() if model in each}
        if wanted is None:
            if len(set(here.values())) > 1:
                yield f"{where}: model {model} is answered by different versions: {_told(here)}"
            continue
        wrong = {
            each.id: here[each.id]
            for each in replicas
            if here.get(each.id, wanted) != wanted and (each.grpc or not _has(each, model, wanted))
        }
        if wrong:
            moved = sum(each.models.moved for each in replicas if each.id in wrong)
            more = f"; at most {moved} requests were answered there by another" if moved else ""
            said = f"model {model} is to be answered by version {wanted}, but replicas answer by"
            yield f"{where}: {said} another: {_told(wrong)}{more}"


def _has(replica: VersionedReplica, model: str, version: str) -> bool:
    state = replica.models.models.get((model, version))
    return state is not None and state.state == READY


def _told(versions: Mapping[str, str]) -> str:
    listed = [f"{name} {version}" for name, version in sorted(versions.items())]
    more = f" and {len(listed) - MAX_TOLD} more" if len(listed) > MAX_TOLD else ""
    return ", ".join(listed[:MAX_TOLD]) + more


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
