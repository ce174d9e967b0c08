"""What a replica's answers mean for an operation: its models, its free memory, the plan. Pure.

Rules:

1. A load leaves a replica as it is that has the model READY, in the wanted version if one is
   wanted; it loads anew where there is only another version. A model that the replica's repository
   does not have cannot be loaded.
2. An unload leaves a replica as it is that has no version of the model in use.
3. The model's ``memory_mib`` of the pool must be free where the model is not loaded: on a GPU, the
   emptiest one counts, or on the host if the replica shows no GPU. Unknown memory refuses nothing,
   nor does that of a replica that is loading the model now: its load has taken a part of it.
4. An unload of a model that the pool lists needs another replica of the pool, one that takes
   requests and has the model READY, unless it is forced.

Sources: the repository index of Triton's model repository extension; its metrics
``nv_gpu_memory_*`` and ``nv_cpu_memory_*``; its statistics extension.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from xds_server.applications.loading.machine import ReplicaFinding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from xds_server.applications.loading.operation import Kind

MIB: Final = 2**20
NOT_EXPLICIT: Final = "explicit model load / unload is not allowed"
"""What Triton answers to loads and unloads where they are not allowed."""
NEEDS_EXPLICIT: Final = (
    "it takes no loads and unloads; start this Triton with --model-control-mode=explicit"
    " (and --load-model for what it is to have from the start)"
)
_IN_USE: Final = frozenset({"READY", "LOADING", "UNLOADING"})
_SERIES: Final = re.compile(
    r"^nv_(?P<of>gpu|cpu)_memory_(?P<what>total|used)_bytes(?P<labels>\{[^}\n]*\})?"
    r" +(?P<value>[^ \n]+)",
    re.MULTILINE,
)
_MAX_SERIES: Final = 1024


class RepositoryIndexError(ValueError):
    """The answer is no repository index."""


class RepositoryEntry(NamedTuple):
    """A model in a replica's repository."""

    known: bool
    """The repository has it."""
    ready: frozenset[str]
    """The versions that are READY."""
    in_use: bool
    """A version is READY, or is being loaded or unloaded."""


class Answered(NamedTuple):
    """What a replica has counted of requests."""

    good: int = 0
    failed: int = 0
    computed: int = 0
    """Requests whose time of inference is known."""
    computed_ns: int = 0
    """Nanoseconds of inference of these, without the queue."""

    @property
    def total(self) -> int:
        """All that were answered."""
        return self.good + self.failed

    @property
    def mean_s(self) -> float | None:
        """Mean seconds of an inference; ``None`` = none is known."""
        return self.computed_ns / self.computed / 1e9 if self.computed else None


class FreeMemory(NamedTuple):
    """Memory of a replica that is free."""

    of: str
    """``GPU`` or ``host``."""
    size: int
    """Bytes."""


def model_in(index: bytes, model: str) -> RepositoryEntry:
    """Return what a repository index says of a model.

    Raises:
        RepositoryIndexError: The answer is no index.
    """
    try:
        rows = json.loads(index)
    except (ValueError, RecursionError) as error:
        raise RepositoryIndexError("its repository index cannot be read") from error
    if not isinstance(rows, list) or not all(isinstance(each, dict) for each in rows):
        raise RepositoryIndexError("its repository index is no list of models")
    mine = [each for each in rows if each.get("name") == model]
    states = {str(each.get("version", "")): str(each.get("state", "")) for each in mine}
    return RepositoryEntry(
        bool(mine),
        frozenset(version for version, state in states.items() if state == "READY"),
        any(state in _IN_USE for state in states.values()),
    )


def answered(body: bytes) -> Answered:
    """Return what Triton's statistics say of a model, over its versions.

    Source: Triton's statistics extension.

    Raises:
        ValueError: The answer is none of its statistics.
    """
    try:
        rows = [each["inference_stats"] for each in json.loads(body)["model_stats"]]
        numbers = [
            (
                each["success"]["count"],
                each["fail"]["count"],
                each["compute_infer"]["count"],
                each["compute_infer"]["ns"],
            )
            for each in rows
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("its statistics cannot be read") from error
    if not all(type(one) is int and one >= 0 for each in numbers for one in each):
        raise ValueError("its statistics have what is no count")
    return sum_of([Answered(*each) for each in numbers])


def sum_of(counts: Iterable[Answered]) -> Answered:
    """Return the sums of counts; of none, zeros."""
    return Answered(*map(sum, zip(Answered(), *counts, strict=True)))


def since(before: Answered | None, now: Answered) -> Answered:
    """Return what was counted since an earlier answer.

    Nothing if there was none. A count that fell is that of a new process, which began at 0.
    """
    if before is None:
        return Answered()
    if any(one > other for one, other in zip(before, now, strict=True)):
        return now
    return Answered(*(other - one for one, other in zip(before, now, strict=True)))


def free_memory(page: str) -> FreeMemory | None:
    """Return the free memory that a metrics page shows; ``None`` = it shows none."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for count, each in enumerate(_SERIES.finditer(page)):
        try:
            value = float(each["value"])
        except ValueError:
            continue
        if count < _MAX_SERIES and math.isfinite(value) and 0 <= value < 2**60:
            found.setdefault((each["of"], each["labels"] or ""), {})[each["what"]] = value
    for of, name in (("gpu", "GPU"), ("cpu", "host")):
        free = [
            int(max(0.0, sizes["total"] - sizes["used"]))
            for (kind, _), sizes in found.items()
            if kind == of and len(sizes) == 2 and sizes["total"]  # noqa: PLR2004 - total and used
        ]
        if free:
            return FreeMemory(name, max(free))
    return None


def plan_of(
    kind: Kind, version: str, state: RepositoryEntry, memory: FreeMemory | None, needed_mib: int
) -> ReplicaFinding:
    """Return what an operation does at a replica.

    Args:
        kind: Load or unload.
        version: The version that is wanted; empty = any.
        state: The model there.
        memory: Free memory; ``None`` = unknown.
        needed_mib: What the model needs there; 0 = nothing is known of it.
    """
    if kind == "unload":
        idle = ReplicaFinding("keep", "it is not loaded there")
        return ReplicaFinding("change") if state.in_use else idle
    if state.ready and (not version or version in state.ready):
        return ReplicaFinding("keep", f"it is READY there already ({listed(state.ready)})")
    if not state.known:
        return ReplicaFinding("keep", refusal="its repository does not have the model")
    if state.ready:
        text = f"it has version {listed(state.ready)}, which stays in use while it loads"
        return ReplicaFinding("reload", text)
    if state.in_use:
        return ReplicaFinding("change", "it is being loaded or unloaded there")
    return _fits(memory, needed_mib) if needed_mib else ReplicaFinding("change")


def takes_last(
    states: Mapping[str, RepositoryEntry], usable: frozenset[str], chosen: frozenset[str]
) -> str:
    """Return why an unload must not happen; empty = another replica has the model.

    Args:
        states: The model on the replicas that are known, by replica.
        usable: The replicas that take requests.
        chosen: The replicas that it is unloaded from.
    """
    serving = {each for each, state in states.items() if state.ready and each in usable}
    if not serving & chosen or serving - chosen:
        return ""
    return (
        f"{', '.join(sorted(serving & chosen))} would be the last of the pool to have it;"
        " load it on another one first, or use --force"
    )


def _fits(memory: FreeMemory | None, needed_mib: int) -> ReplicaFinding:
    if memory is None:
        return ReplicaFinding("change", "its free memory is unknown")
    free = f"{memory.size // MIB} MiB of {memory.of} memory are free, {needed_mib} MiB are needed"
    if memory.size < needed_mib * MIB:
        return ReplicaFinding("keep", refusal=free)
    return ReplicaFinding("change", free)


def listed(versions: frozenset[str]) -> str:
    """Return versions in words, in their order."""
    return ", ".join(sorted(versions, key=lambda each: (len(each), each)))
