"""Whether a replica may be stopped: what still uses it, or may. Pure.

Rules:

1. A replica is *safe to stop* if no picker and no Envoy gives it new requests, and the ledgers of
   all pickers are at zero for it: no request in flight, no open sequence.
2. A zero counts if the picker said it within ``RECENT_S`` and after it had applied the pools that
   it was sent last. A picker that has not said so is named, never taken for zero.
3. There are as many pickers as the fleet has addresses of them. One that is not connected may still
   serve Envoys, so it is named as well, by the id that it had.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

RECENT_S: Final = 15.0
"""Pickers report at least every 5 s."""

MAX_NAMED: Final = 32
"""Most reasons in an answer."""


class PickerUse(NamedTuple):
    """What a picker reported last of the replicas that are in use."""

    age_s: float
    """Seconds since the report."""
    taken: str
    """Nonce of the last response that it had applied when it counted."""
    in_flight: Mapping[str, int]
    """Endpoint id -> requests in flight; an absent endpoint has none."""
    sequences: Mapping[str, int]
    """Endpoint id -> open sequences, of draining endpoints; an absent endpoint has none."""
    leaving: Mapping[tuple[str, str], int] = MappingProxyType({})
    """Endpoint id and model that leaves it -> requests in flight; an absent one has none."""

    def includes(self, nonce: str, connected_s: float) -> bool:
        """Return whether it includes all picks with earlier pools than the picker holds now.

        A picker that has connected again and holds all of its pools is sent none: any report since
        does.

        Args:
            nonce: Of the last response that the picker has acknowledged; empty = none.
            connected_s: Seconds since it connected.
        """
        return self.taken == nonce if nonce else self.age_s < connected_s


class PickerUses(Protocol):
    """What pickers report of their uses."""

    def uses(self) -> Mapping[str, PickerUse]:
        """Return what each reporting picker said last."""

    def gone(self) -> Sequence[str]:
        """Return the pickers whose reports have ended, the last one first."""


class PickerView(NamedTuple):
    """A connected picker, as far as one replica is concerned."""

    name: str
    age_s: float | None
    """Seconds since its last report; ``None`` = it has not reported."""
    current: bool
    """It has applied the pools that it was sent last, and reported since."""
    in_flight: int = 0
    sequences: int = 0


class ReplicaUse(NamedTuple):
    """All that may use a replica."""

    endpoint: str
    pools: Sequence[str]
    """Pools in which it does not drain."""
    drawn: Sequence[str]
    """Clients, or pools of clients, that may still give it new requests, in words."""
    pickers: Sequence[PickerView]
    expected: int
    """Number of pickers that the fleet has."""
    gone: Sequence[str] = ()
    """Pickers whose reports have ended, the last one first."""


def waits_for(use: ReplicaUse) -> tuple[str, ...]:
    """Return what has to end before the replica may be stopped; empty = it is safe."""
    return tuple(_reasons(use))[:MAX_NAMED]


def _reasons(use: ReplicaUse) -> Iterator[str]:
    for pool in use.pools:
        yield f"{use.endpoint} takes new requests in pool {pool}: drain it"
    yield from use.drawn
    for each in use.pickers:
        if each.in_flight:
            yield f"picker {each.name}: {_count(each.in_flight, 'request')} in flight"
        if each.sequences:
            yield f"picker {each.name}: {_count(each.sequences, 'open sequence')}"
    for each in use.pickers:
        doubt = _doubt(each)
        if doubt:
            yield f"picker {each.name} has not reported{doubt}"
    yield from _missing(use)


def _doubt(picker: PickerView) -> str:
    """Return since when a picker has not reported; empty = its report counts."""
    if picker.age_s is None:
        return " yet"
    if picker.age_s > RECENT_S:
        return f" for {picker.age_s:.0f} s"
    return "" if picker.current else " since the last change of the fleet"


def _missing(use: ReplicaUse) -> Iterator[str]:
    missing = use.expected - len(use.pickers)
    if not use.pickers and missing <= 0:
        yield "no picker is connected: what is in flight is not known"
    if missing <= 0:
        return
    here = {each.name for each in use.pickers}
    names = [name for name in use.gone if name not in here][:missing]
    for name in names:
        yield f"picker {name} is not connected: what it has in flight is not known"
    left = missing - len(names)
    if left:
        yield f"{left} of {use.expected} pickers not connected: what is in flight is not known"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
