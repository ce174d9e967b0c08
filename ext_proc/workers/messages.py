"""Messages that are records of JSON: a name for each, and how its fields are read. Pure.

Rules:

1. A record is a list: the name, then the message's fields in their order. A named tuple in a field
   is a list, too; bytes are base64, sets are lists.
2. What is read has the types and the bounds that the message states, or ``_FAULTS`` of ``decode``
   are raised.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import fields
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from ext_proc.blame.alike import MAX_KINDS
from ext_proc.blame.deaths import Who
from ext_proc.blame.fingerprint import BYTES
from ext_proc.routing.state.leases import Lease, Leased, LeaseKey, Released
from ext_proc.routing.suspicion import (
    CallerLeft,
    Died,
    Gone,
    SuspectBody,
    SuspectCleared,
    SuspectRun,
)
from ext_proc.routing.values.listing import MAX_ROWS, Listing, PlacementState, Row
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.proposal import PlacedAs, Proposal
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.request import SequenceKey
from ext_proc.telemetry.news import PushEnded, ReadingsUpdate, Restarted, ScrapeFailed
from ext_proc.workers.news import (
    HeldLease,
    Hello,
    Listed,
    Looked,
    LookWanted,
    OwnerAnswer,
    OwnerAsk,
    Probed,
    SnapshotEnd,
)
from ext_proc.workers.records import GarbledError
from tidegate_api.addresses import MAX_MEMBERS

if TYPE_CHECKING:
    from collections.abc import Callable

    _Reader = Callable[[Any], Any]

_NAMES: Final = ("adapters", "adapters_waiting")
MAX_COUNT: Final = 2**62
MAX_AMOUNT: Final = 2.0**50
"""Work, tokens, of all requests of a worker's life."""
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "float": (int, float),
    "int": (int,),
    "str": (str,),
    "bool": (bool,),
    "None": (type(None),),
}
_SCALARS: Final = {
    each.name: tuple([one for kind in each.type.split(" | ") for one in _TYPES.get(kind, ())])
    for each in fields(Reading)
}
"""Types of the fields of a reading."""


def plain(value: Any) -> Any:
    """Return as JSON knows it what it does not know (rule 1)."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Proposal):
        return value[:-1]
    return sorted(value) if isinstance(value, frozenset) else list(value)


def finite(value: float) -> float:
    """Return a time; raise ``GarbledError`` if it is none."""
    if not isfinite(value):
        raise GarbledError(f"expected a time, got {value}")
    return value


def amount(value: float) -> float:
    """Return an amount; raise ``GarbledError`` if it is none."""
    if not 0.0 <= value <= MAX_AMOUNT:
        raise GarbledError(f"expected an amount of work, got {value}")
    return value


def _of(kind: Callable[..., Any], *readers: _Reader) -> _Reader:
    """Return a reader of a list of fields."""

    def read(values: Any) -> Any:
        return kind(*[reader(value) for reader, value in zip(readers, values, strict=True)])

    return read


def _maybe(reader: _Reader) -> _Reader:
    return lambda value: None if value is None else reader(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise GarbledError(f"expected a text, got {value!r:.80}")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)):
        raise GarbledError(f"expected a number, got {value!r:.80}")
    return float(value)


def _time(value: Any) -> float:
    return finite(_number(value))


def _reading(value: Any) -> Reading:
    lists: dict[str, Any] = {
        name: frozenset(map(_text, value[name])) for name in _NAMES if value[name] is not None
    }
    lists["failures_per_s"] = tuple(
        [(_text(why), _number(rate)) for why, rate in value["failures_per_s"]]
    )
    for name in value.keys() - lists.keys():
        if not isinstance(value[name], _SCALARS[name]):
            raise GarbledError(f"a reading's {name} is {value[name]!r:.80}")
    return Reading(**{**value, **lists})


def _bytes(value: Any) -> bytes:
    return b64decode(_text(value), validate=True)


def _fingerprint(value: Any) -> bytes:
    fingerprint = _bytes(value)
    if len(fingerprint) != BYTES:
        raise GarbledError(f"expected a fingerprint, got {value!r:.80}")
    return fingerprint


def _kinds(value: Any) -> tuple[bytes, ...]:
    if len(value) > MAX_KINDS:
        raise GarbledError(f"a request of {len(value)} kinds; at most {MAX_KINDS} are allowed")
    return tuple([_fingerprint(each) for each in value])


# Leases are told for each request of a sequence, so they are read by hand.


def endpoint_key(value: Any) -> EndpointKey:
    """Read the identity of a replica."""
    name, incarnation = value
    return EndpointKey(_text(name), int(incarnation))


def _sequence(value: Any) -> SequenceKey:
    model, version, name = value
    if not isinstance(name, (int, str)):
        raise GarbledError(f"expected a sequence, got {name!r:.80}")
    return SequenceKey(_text(model), _text(version), name)


def _lease_key(value: Any) -> LeaseKey:
    pool, sequence = value
    return LeaseKey(_text(pool), _sequence(sequence))


def _lease(value: Any) -> Lease:
    endpoint, variant, expires = value
    return Lease(endpoint_key(endpoint), _text(variant), _time(expires))


_row: Final = _of(Row, _text, _text, PlacementState, _text)
_who: Final = _of(Who, _maybe(_fingerprint), _kinds, _maybe(_fingerprint))
_proposal: Final = _of(
    Proposal,
    _text,
    _sequence,
    endpoint_key,
    _text,
    lambda idle_s: amount(_number(idle_s)),
    _maybe(endpoint_key),
)


def _rows(value: Any) -> tuple[Row, ...]:
    return tuple([_row(each) for each in value[: MAX_ROWS + 1]])


def _count(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < MAX_COUNT:
        raise GarbledError(f"expected a count, got {value!r:.80}")
    return value


def _ids(value: Any) -> tuple[str, ...]:
    if len(value) > MAX_MEMBERS:
        raise GarbledError(f"a group of {len(value)} members; at most {MAX_MEMBERS} are allowed")
    return tuple([_text(each) for each in value])


def _readings(value: Any) -> tuple[Reading, ...]:
    return tuple([_reading(each) for each in value])


_FIELDS: Final[dict[str, tuple[type, tuple[_Reader, ...]]]] = {
    "lease": (Leased, (_lease_key, _lease)),
    "release": (Released, (_lease_key,)),
    "heard": (ReadingsUpdate, (_text, _text, _readings, _number)),
    "restarted": (Restarted, (_text,)),
    "failed": (ScrapeFailed, (_text, int)),
    "push-ended": (PushEnded, (_text,)),
    "probed": (Probed, (_text, endpoint_key, bool, _text)),
    "looked": (Looked, (endpoint_key, _maybe(_of(Listing, _time, _rows, bool)))),
    "look-wanted": (LookWanted, (endpoint_key,)),
    "hello": (Hello, (_text, _time, _count, _text)),
    "held": (HeldLease, (_lease_key, _lease, _count, _maybe(endpoint_key))),
    "listed": (Listed, (_count, _count, _ids)),
    "ask": (OwnerAsk, (int, _proposal, _text)),
    "answer": (OwnerAnswer, (int, PlacedAs)),
    "begun": (SnapshotEnd, ()),
    "died": (Died, (_text, _who, _time, bool)),
    "suspect-body": (SuspectBody, (_fingerprint, _text, _bytes, _kinds)),
    "cleared": (SuspectCleared, (_fingerprint,)),
    "gone": (Gone, (_text, _time)),
    "abandoned": (CallerLeft, (_text, _time)),
    "suspect-runs": (SuspectRun, (_fingerprint, _maybe(_text), _time)),
}
NAMES: Final = {kind: name for name, (kind, _) in _FIELDS.items()}
"""The name of each kind of message."""
READERS: Final = {name: _of(kind, *readers) for name, (kind, readers) in _FIELDS.items()}
"""How the fields behind a name are read."""
