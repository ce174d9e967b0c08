"""What must be true of requests and changes while parts are lost. Pure.

Rules:

1. A request without a sequence is answered, unless in its time its own Envoy was lost, or replicas
   of its pool were and a picker too (its body may not have been read: see
   ``docs/explanation/retries.md``), or it needs a picker and one was lost. One may be refused for
   the limit of its replicas, as also what a stopped Envoy has open counts, and one whose answer
   had begun may break off.
2. An answer is that of its own request, by a replica of its own pool.
3. A sequence reaches one replica.
4. What a control server has acknowledged is in the history, once, in the order of acknowledgements;
   no Envoy has a state and later an older one.
5. A process of ours ends by itself only for want of memory, or as its rules say.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from support.chaos.real.schedule import PARTS, group

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NEEDS_PICKER: Final = ("unnamed", "pick")
"""Kinds of requests that are refused where no picker answers."""
SEQUENCE: Final = "sequence"
NO_PICKER: Final = "it needs a picker"
LIMIT: Final = "the limit of the replicas"
PICK_WITHIN_S: Final = 20.0
"""Ten times the aim until a picker decides again."""
CHANGE_WITHIN_S: Final = 60.0
"""Ten times the aim until a change is made again."""
BEFORE_S: Final = 1.0
"""A request may meet a fault that is found that much later."""
AFTER_S: Final = 3.0
"""Clients and health checks need as long to find that a part is back."""
GRPC_ABORTS: Final = -6
"""gRPC's core ends the process by this signal where it gets no descriptor to wake itself."""
SETTLED_S: Final = 3.0
"""A while after a change's acknowledgement, when all is whole, every Envoy shows it."""
HARMLESS: Final = ("dark", "slow")
"""Faults of a replica that excuse nothing, as do links of others to it."""
LEASE_LOST: Final = 4
"""Exit code of a control server without its lease."""


class Request(NamedTuple):
    """A request as its client saw it."""

    id: str
    kind: str
    """``http``, ``grpc``, ``sse``, one of ``NEEDS_PICKER``, or ``SEQUENCE``."""
    pool: str
    envoy: str
    began: float
    ended: float
    error: str = ""
    """Empty = it was answered whole."""
    begun: bool = False
    """An answer had begun."""
    echoed: str = ""
    """The id in the answer."""
    replica: str = ""
    """Who answered."""


class Window(NamedTuple):
    """A fault in force, until all was whole again."""

    number: int
    kind: str
    parts: tuple[str, ...]
    began: float
    ended: float


class Received(NamedTuple):
    """A request as a replica saw it."""

    replica: str
    id: str
    sequence: str


class Change(NamedTuple):
    """A change that an operator asked for."""

    value: int
    began: float
    ended: float
    revision: int
    """0 = it was not acknowledged."""


class Exit(NamedTuple):
    """A process that ended by itself."""

    part: str
    code: int
    at: float


def meets(window: Window, began: float, ended: float) -> bool:
    """Return whether a fault was in force in a time."""
    return window.began - BEFORE_S <= ended and began <= window.ended + AFTER_S


def excuse(request: Request, windows: Iterable[Window]) -> str:
    """Return why a request that was lost may be lost; empty = it may not."""
    met = [each for each in windows if meets(each, request.began, request.ended)]
    hit = [(each, part) for each in met for part in each.parts]
    if any(part == request.envoy and len(each.parts) == 1 for each, part in hit):
        return "its Envoy"
    of_pool = {
        part
        for each, part in hit
        if group(part) == request.pool
        and each.kind not in HARMLESS
        and (len(each.parts) == 1 or request.envoy in each.parts)
    }
    asked = any(
        {group(part) for part in each.parts} <= {"picker", "envoy"}
        for each, part in hit
        if group(part) == "picker"
    )
    if request.kind in NEEDS_PICKER and asked:
        return NO_PICKER
    if met and "at their limit" in request.error:
        return LIMIT
    if request.begun and of_pool:
        return "its answer had begun"
    if of_pool and any(group(part) == "picker" for _, part in hit):
        return "a replica and a picker"
    return "two replicas" if len(of_pool) > 1 else ""


def of_requests(requests: Iterable[Request], windows: Sequence[Window]) -> list[str]:
    """Return what is wrong with requests and their answers."""
    wrong = []
    for each in requests:
        if each.error:
            if each.kind != SEQUENCE and not excuse(each, windows):
                wrong.append(f"lost: {each}")
        elif each.echoed != each.id:
            wrong.append(f"another one's answer: {each}")
        elif group(each.replica) != each.pool:
            wrong.append(f"another pool: {each}")
    return wrong


def of_sequences(received: Iterable[Received]) -> list[str]:
    """Return the sequences that reached more than one replica."""
    where: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)
    for each in received:
        if each.sequence:
            where[each.sequence].setdefault(each.replica, []).append(each.id)
    return [f"sequence {name} on {found}" for name, found in where.items() if len(found) > 1]


def of_changes(
    changes: Sequence[Change],
    history: Mapping[int, int],
    seen: Mapping[str, Sequence[tuple[float, int]]],
) -> list[str]:
    """Return what is wrong with changes.

    Args:
        changes: In the order of their calls, none of which overlap.
        history: Revision -> value.
        seen: Envoy -> values that it had, with times.
    """
    wrong = []
    last = 0
    for each in changes:
        if each.revision:
            if each.revision <= last:
                wrong.append(f"revision {each.revision} after {last}: {each}")
            if history.get(each.revision) != each.value:
                wrong.append(f"history has {history.get(each.revision)}: {each}")
            last = max(last, each.revision)
    wrong += [
        f"value {value} in {count} revisions"
        for value, count in Counter(history.values()).items()
        if count > 1
    ]
    for envoy, values in seen.items():
        newest = 0
        for at, value in values:
            if value < newest:
                wrong.append(f"{envoy} had {newest} and at {at:.1f} {value}")
            newest = max(newest, value)
        until = values[-1][0] - SETTLED_S
        wanted = max(
            (each.value for each in changes if each.revision and each.ended < until), default=0
        )
        if values[-1][1] < wanted:
            wrong.append(f"{envoy} has {values[-1][1]} in the end, not {wanted}")
    return wrong


def of_exits(exits: Iterable[Exit], windows: Sequence[Window]) -> list[str]:
    """Return the processes that ended by themselves without a reason."""
    wrong = []
    for each in exits:
        kinds = {
            window.kind
            for window in windows
            if each.part in window.parts and meets(window, each.at, each.at)
        }
        ours = group(each.part) in ("picker", "control")
        fatal = {"memory"} if ours else {"memory", "disk", "descriptors"}
        if each.code == GRPC_ABORTS:
            fatal |= {"descriptors"}
        if each.code != LEASE_LOST and not kinds & fatal:
            wrong.append(f"{each.part} ended with {each.code} at {each.at:.1f} ({kinds or 'calm'})")
    return wrong


def next_pick_s(at: float, requests: Iterable[Request], envoy: str) -> float:
    """Return seconds from a time until the next request that began since was decided."""
    ends = (
        each.ended
        for each in requests
        if each.kind == "pick" and each.envoy == envoy and each.began >= at and not each.error
    )
    return min(ends, default=float("inf")) - at


def next_change_s(at: float, changes: Iterable[Change]) -> float:
    """Return seconds from a time until the next change that began since was acknowledged."""
    ends = (each.ended for each in changes if each.began >= at and each.revision)
    return min(ends, default=float("inf")) - at


class Cost(NamedTuple):
    """What a fault cost, with what was in force at the same time."""

    window: Window
    lost: int
    """Requests without an excuse."""
    open: int
    """Requests of its own Envoy, and answers that broke off."""
    refused: int
    """Steps of sequences that failed, and requests without a picker or above a limit."""
    pick_s: float
    change_s: float


def costs(
    windows: Sequence[Window], requests: Sequence[Request], changes: Sequence[Change]
) -> list[Cost]:
    """Return what each fault cost."""
    found = []
    every = [(each, excuse(each, windows)) for each in requests if each.error]
    for window in windows:
        hit = [pair for pair in every if meets(window, pair[0].began, pair[0].ended)]
        lost = sum(each.kind != SEQUENCE and not why for each, why in hit)
        refusals = (NO_PICKER, LIMIT)
        broken = sum(each.kind != SEQUENCE and why not in refusals for each, why in hit if why)
        others = [f"envoy-{number + 1}" for number in range(PARTS["envoy"])]
        if len(window.parts) == 1 and window.parts[0] in others:
            others.remove(window.parts[0])
        found.append(
            Cost(
                window,
                lost,
                broken,
                len(hit) - lost - broken,
                max(next_pick_s(window.began, requests, each) for each in others),
                next_change_s(window.began, changes),
            )
        )
    return found


def of_recovery(found: Iterable[Cost]) -> list[str]:
    """Return the faults after which a decision or a change took too long."""
    return [
        f"next pick {each.pick_s:.1f} s, next change {each.change_s:.1f} s after {each.window}"
        for each in found
        if each.pick_s > PICK_WITHIN_S or each.change_s > CHANGE_WITHIN_S
    ]


def of_growth(
    first: Mapping[str, tuple[int, int]], last: Mapping[str, tuple[int, int]]
) -> list[str]:
    """Return survivors that grew: of each process descriptors and bytes, first and last."""
    return [
        f"{name} grew from {first[name]} to {last[name]} (descriptors, bytes)"
        for name in first.keys() & last.keys()
        if last[name][0] > 2 * first[name][0] + 64 or last[name][1] > 1.5 * first[name][1] + 2**27
    ]
