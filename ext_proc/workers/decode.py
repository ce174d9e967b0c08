"""Decodes records to messages; ``records`` states the format. Pure."""

from __future__ import annotations

import struct
from array import array
from base64 import b64decode
from math import inf, isfinite, isnan
from typing import TYPE_CHECKING, Any, Final

import orjson

from ext_proc.blame.alike import MAX_KINDS
from ext_proc.blame.deaths import Who
from ext_proc.blame.fingerprint import BYTES
from ext_proc.feedback.entries import Judged
from ext_proc.routing.cache.index_events import Inserted
from ext_proc.routing.cache.trials import Confirmed, Withdrawn
from ext_proc.routing.peers import LatencySample, Share
from ext_proc.routing.state.leases import Lease, Leased, LeaseKey, Released
from ext_proc.routing.state.ledger import MAX_TICKETS
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
from ext_proc.routing.values.ticket import Ticket
from ext_proc.telemetry.news import PushEnded, ReadingsUpdate, Restarted, ScrapeFailed
from ext_proc.workers.news import (
    Hello,
    Looked,
    LookWanted,
    OwnerAnswer,
    OwnerAsk,
    Probed,
    SnapshotEnd,
)
from ext_proc.workers.records import (
    BLOCK_BYTES,
    EFFECTS,
    INSERTED,
    JSON,
    JUDGED,
    LENGTH,
    MAX_BLOCKS,
    MAX_FRAME,
    MAX_JSON,
    MAX_NAMES,
    NO_MODEL,
    SAMPLE,
    SHARE,
    TAG_CONFIRMED,
    TAG_INSERTED,
    TAG_JSON,
    TAG_JUDGED,
    TAG_NAME,
    TAG_SAMPLE,
    TAG_SHARE,
    TAG_WITHDRAWN,
    TRIED,
    GarbledError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ext_proc.workers.records import Message

    _Read = tuple[int, Message | None]
    """Offset of the next record, and the message of this one if it has one."""

_SCALARS: Final = (int, float, str, type(None))
_NAMES: Final = ("adapters", "adapters_waiting")
_FAULTS: Final = (
    struct.error,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""Exceptions that reading a record may raise; ``GarbledError`` is one of them."""


class Decoder:
    """Decodes one stream."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._names: list[EndpointKey | str] = []
        self._readers: dict[int, Callable[[bytes, int], _Read]] = {
            TAG_NAME: self._name,
            TAG_SHARE: self._share,
            TAG_SAMPLE: self._sample,
            TAG_INSERTED: self._inserted,
            TAG_CONFIRMED: self._confirmed,
            TAG_WITHDRAWN: self._withdrawn,
            TAG_JSON: self._json,
            TAG_JUDGED: self._judged,
        }

    def feed(self, data: bytes) -> Iterator[Message]:
        """Add received bytes and yield the messages that they complete.

        Raises:
            GarbledError: The stream is invalid; the decoder must not be used again.
        """
        rest = self._rest
        rest += data
        at = 0
        try:
            while len(rest) - at >= LENGTH.size:
                (length,) = LENGTH.unpack_from(rest, at)
                if length > MAX_FRAME:
                    raise GarbledError(f"frame of {length} bytes; at most {MAX_FRAME} are allowed")
                end = at + LENGTH.size + length
                if end > len(rest):
                    break
                frame = bytes(rest[at + LENGTH.size : end])
                at = end
                yield from self._frame(frame)
        finally:
            del rest[:at]

    def _frame(self, frame: bytes) -> Iterator[Message]:
        at, size, readers = 0, len(frame), self._readers
        while at < size:
            try:
                at, message = readers[frame[at]](frame, at)
            except _FAULTS as error:
                raise GarbledError(f"unreadable record: {error!r}") from error
            if message is not None:
                yield message

    def _name(self, frame: bytes, at: int) -> _Read:
        value, end = _value(frame, at)
        if len(self._names) >= MAX_NAMES:
            raise GarbledError(f"more than {MAX_NAMES} names")
        self._names.append(value if isinstance(value, str) else _key(value))
        return end, None

    def _share(self, frame: bytes, at: int) -> _Read:
        _, pool, endpoint, model, in_flight, charges, work, prefilled = SHARE.unpack_from(frame, at)
        if in_flight > MAX_TICKETS:
            raise GarbledError(f"{in_flight} requests in flight")
        share = Share(
            self._pool(pool),
            self._endpoint(endpoint),
            in_flight,
            _amount(work),
            charges,
            _amount(prefilled),
            None if model == NO_MODEL else self._pool(model),
        )
        return at + SHARE.size, share

    def _sample(self, frame: bytes, at: int) -> _Read:
        _, pool, endpoint, work, began, ended, drain, ahead, prompted = SAMPLE.unpack_from(
            frame, at
        )
        ticket = Ticket(
            0,
            self._endpoint(endpoint),
            self._pool(pool),
            _amount(work),
            _finite(began),
            bool(prompted),
            _known(drain),
            ahead,
        )
        return at + SAMPLE.size, LatencySample(ticket, _finite(ended))

    def _inserted(self, frame: bytes, at: int) -> _Read:
        _, number, when, tenant, ticket, again, count = INSERTED.unpack_from(frame, at)
        at += INSERTED.size
        end = at + count * BLOCK_BYTES
        if count > MAX_BLOCKS or end > len(frame):
            raise GarbledError(f"invalid insert of {count} blocks")
        blocks = tuple(array("q", frame[at:end]))
        endpoint = self._endpoint(number)
        return end, Inserted(endpoint, blocks, _finite(when), tenant, ticket, bool(again))

    def _confirmed(self, frame: bytes, at: int) -> _Read:
        return at + TRIED.size, Confirmed(TRIED.unpack_from(frame, at)[1])

    def _withdrawn(self, frame: bytes, at: int) -> _Read:
        return at + TRIED.size, Withdrawn(TRIED.unpack_from(frame, at)[1])

    def _judged(self, frame: bytes, at: int) -> _Read:
        _, pool, endpoint, effect, first_byte_s, answer_s, rate, answered, *counts = (
            JUDGED.unpack_from(frame, at)
        )
        judged = Judged(
            self._pool(pool),
            self._endpoint(endpoint),
            EFFECTS[effect],
            _known(first_byte_s),
            _known(answer_s),
            _known(rate),
            bool(answered),
            *counts,
        )
        return at + JUDGED.size, judged

    def _json(self, frame: bytes, at: int) -> _Read:
        (kind, *fields), end = _value(frame, at)
        return end, _JSON_MESSAGES[kind](*fields)

    def _pool(self, number: int) -> str:
        name = self._names[number]
        if not isinstance(name, str):
            raise GarbledError(f"name {number} is not a pool")
        return name

    def _endpoint(self, number: int) -> EndpointKey:
        name = self._names[number]
        if isinstance(name, str):
            raise GarbledError(f"name {number} is not an endpoint")
        return name


def _value(frame: bytes, at: int) -> tuple[Any, int]:
    _, length = JSON.unpack_from(frame, at)
    at += JSON.size
    if length > min(MAX_JSON, len(frame) - at):
        raise GarbledError(f"record of {length} bytes exceeds its frame or {MAX_JSON} bytes")
    return orjson.loads(frame[at : at + length]), at + length


def _finite(value: float) -> float:
    if not isfinite(value):
        raise GarbledError(f"expected a time, got {value}")
    return value


def _amount(value: float) -> float:
    if not 0.0 <= value < inf:
        raise GarbledError(f"expected an amount of work, got {value}")
    return value


def _known(value: float) -> float | None:
    if isnan(value):
        return None
    if not 0.0 <= value < inf:
        raise GarbledError(f"expected a duration or a rate, got {value}")
    return value


def _key(value: Any) -> EndpointKey:
    name, incarnation = value
    return EndpointKey(_text(name), int(incarnation))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise GarbledError(f"expected a text, got {value!r:.80}")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)):
        raise GarbledError(f"expected a number, got {value!r:.80}")
    return float(value)


def _sequence(value: Any) -> SequenceKey:
    model, version, name = value
    if not isinstance(name, (int, str)):
        raise GarbledError(f"expected a sequence, got {name!r:.80}")
    return SequenceKey(_text(model), _text(version), name)


def _lease(pool: Any, sequence: Any, endpoint: Any, variant: Any, expires: Any) -> Message:
    lease = Lease(_key(endpoint), _text(variant), _number(expires))
    return Leased(LeaseKey(_text(pool), _sequence(sequence)), lease)


def _release(pool: Any, sequence: Any) -> Message:
    return Released(LeaseKey(_text(pool), _sequence(sequence)))


def _readings_update(endpoint: Any, source: Any, at: Any, readings: Any) -> Message:
    return ReadingsUpdate(
        _text(endpoint), _text(source), tuple([_reading(each) for each in readings]), _number(at)
    )


def _reading(value: Any) -> Reading:
    lists: dict[str, Any] = {
        name: frozenset(map(_text, value[name])) for name in _NAMES if value[name] is not None
    }
    lists["failures_per_s"] = tuple(
        [(_text(why), _number(rate)) for why, rate in value["failures_per_s"]]
    )
    if not all(isinstance(value[name], _SCALARS) for name in value if name not in lists):
        raise GarbledError("a reading has a field that is not a scalar")
    return Reading(**{**value, **lists})


def _probed(pool: Any, endpoint: Any, ready: Any, why: Any) -> Message:
    return Probed(_text(pool), _key(endpoint), bool(ready), _text(why))


def _looked(endpoint: Any, at: Any, rows: Any, whole: Any) -> Message:
    if at is None:
        return Looked(_key(endpoint), None)
    read = [
        Row(_text(model), _text(version), PlacementState(state), _text(reason))
        for model, version, state, reason in rows[: MAX_ROWS + 1]
    ]
    return Looked(_key(endpoint), Listing(_finite(_number(at)), tuple(read), bool(whole)))


def _fingerprint(value: Any) -> bytes:
    fingerprint = bytes.fromhex(_text(value))
    if len(fingerprint) != BYTES:
        raise GarbledError(f"expected a fingerprint, got {value!r:.80}")
    return fingerprint


def _kinds(value: Any) -> tuple[bytes, ...]:
    if len(value) > MAX_KINDS:
        raise GarbledError(f"a request of {len(value)} kinds; at most {MAX_KINDS} are allowed")
    return tuple([_fingerprint(each) for each in value])


def _died(
    replica: Any, fingerprint: Any, kinds: Any, caller: Any, at: Any, answered: Any
) -> Message:
    who = Who(
        None if fingerprint is None else _fingerprint(fingerprint),
        _kinds(kinds),
        None if caller is None else _fingerprint(caller),
    )
    return Died(_text(replica), who, _finite(_number(at)), bool(answered))


def _suspect_body(fingerprint: Any, pool: Any, body: Any, kinds: Any) -> Message:
    data = b64decode(_text(body), validate=True)
    return SuspectBody(_fingerprint(fingerprint), _text(pool), data, _kinds(kinds))


def _suspect_runs(fingerprint: Any, replica: Any, at: Any) -> Message:
    place = None if replica is None else _text(replica)
    return SuspectRun(_fingerprint(fingerprint), place, _finite(_number(at)))


def _hello(member: Any, at: Any, count: Any, view: Any) -> Message:
    return Hello(_text(member), _finite(_number(at)), int(count), _text(view))


def _ask(
    number: Any,
    pool: Any,
    sequence: Any,
    endpoint: Any,
    variant: Any,
    idle_s: Any,
    before: Any,
) -> Message:
    proposal = Proposal(
        _text(pool),
        _sequence(sequence),
        _key(endpoint),
        _text(variant),
        _amount(_number(idle_s)),
        None if before is None else _key(before),
    )
    return OwnerAsk(int(number), proposal)


_JSON_MESSAGES: Final[dict[str, Callable[..., Message]]] = {
    "lease": _lease,
    "release": _release,
    "heard": _readings_update,
    "restarted": lambda endpoint: Restarted(_text(endpoint)),
    "failed": lambda endpoint, failures: ScrapeFailed(_text(endpoint), int(failures)),
    "push-ended": lambda endpoint: PushEnded(_text(endpoint)),
    "probed": _probed,
    "looked": _looked,
    "look-wanted": lambda endpoint: LookWanted(_key(endpoint)),
    "hello": _hello,
    "ask": _ask,
    "answer": lambda number, placed: OwnerAnswer(int(number), PlacedAs(placed)),
    "begun": SnapshotEnd,
    "died": _died,
    "suspect-body": _suspect_body,
    "cleared": lambda fingerprint: SuspectCleared(_fingerprint(fingerprint)),
    "gone": lambda replica, at: Gone(_text(replica), _finite(_number(at))),
    "abandoned": lambda replica, at: CallerLeft(_text(replica), _finite(_number(at))),
    "suspect-runs": _suspect_runs,
}
