"""Records to events; the format is in ``records``. Pure."""

from __future__ import annotations

import struct
from array import array
from math import inf, isfinite, isnan
from typing import TYPE_CHECKING, Any, Final

import orjson

from ext_proc.feedback.entries import Judged
from ext_proc.routing.leases import Lease, Leased, LeaseKey, Released
from ext_proc.routing.ledger import Charged, Settled
from ext_proc.routing.prefix_index import Inserted
from ext_proc.routing.types import EndpointKey, Reading, SequenceKey, Ticket
from ext_proc.telemetry.news import Failed, Heard, PushEnded, Restarted
from ext_proc.workers.news import Begun, Indexed, Probed
from ext_proc.workers.records import (
    BLOCK_BYTES,
    CHARGED,
    INSERTED,
    JSON,
    JUDGED,
    LENGTH,
    MAX_BLOCKS,
    MAX_FRAME,
    MAX_JSON,
    MAX_NAMES,
    OUTCOMES,
    SETTLED,
    TAG_CHARGED,
    TAG_INSERTED,
    TAG_JSON,
    TAG_JUDGED,
    TAG_NAME,
    TAG_SETTLED,
    VERDICTS,
    GarbledError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ext_proc.workers.records import Word

    _Read = tuple[int, Word | None, float]
    """Where the next record begins, what this one says, and its time."""

_SCALARS: Final = (int, float, str, type(None))
_FAULTS: Final = (
    struct.error,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""What reading a record may raise; ``GarbledError`` is one of them."""


class Decoder:
    """Reads one stream."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._names: list[EndpointKey | str] = []
        self._readers: dict[int, Callable[[bytes, int], _Read]] = {
            TAG_NAME: self._name,
            TAG_CHARGED: self._charged,
            TAG_SETTLED: self._settled,
            TAG_INSERTED: self._inserted,
            TAG_JSON: self._worded,
            TAG_JUDGED: self._judged,
        }

    def feed(self, data: bytes) -> Iterator[tuple[Word, float]]:
        """Take bytes as they come and yield the events that are whole, with their times.

        The time is the settle's own; 0 where the event carries its time or needs none.

        Raises:
            GarbledError: The stream is useless from here on.
        """
        rest = self._rest
        rest += data
        at = 0
        try:
            while len(rest) - at >= LENGTH.size:
                (length,) = LENGTH.unpack_from(rest, at)
                if length > MAX_FRAME:
                    raise GarbledError(f"a frame of {length} bytes; at most {MAX_FRAME}")
                end = at + LENGTH.size + length
                if end > len(rest):
                    break
                frame = bytes(rest[at + LENGTH.size : end])
                at = end
                yield from self._frame(frame)
        finally:
            del rest[:at]

    def _frame(self, frame: bytes) -> Iterator[tuple[Word, float]]:
        at, size, readers = 0, len(frame), self._readers
        while at < size:
            try:
                at, word, when = readers[frame[at]](frame, at)
            except _FAULTS as error:
                raise GarbledError(f"a record cannot be read: {error!r}") from error
            if word is not None:
                yield word, when

    def _name(self, frame: bytes, at: int) -> _Read:
        value, end = _value(frame, at)
        if len(self._names) >= MAX_NAMES:
            raise GarbledError(f"more than {MAX_NAMES} names")
        self._names.append(value if isinstance(value, str) else _key(value))
        return end, None, 0.0

    def _charged(self, frame: bytes, at: int) -> _Read:
        _, number, endpoint, pool, work, began, drain, ahead, prompted = CHARGED.unpack_from(
            frame, at
        )
        if not isfinite(work) or work < 0.0:
            raise GarbledError(f"{work} where work stands")
        ticket = Ticket(
            number,
            self._endpoint(endpoint),
            self._pool(pool),
            work,
            _finite(began),
            bool(prompted),
            _known(drain),
            ahead,
        )
        return at + CHARGED.size, Charged(ticket), 0.0

    def _settled(self, frame: bytes, at: int) -> _Read:
        _, number, outcome, when = SETTLED.unpack_from(frame, at)
        return at + SETTLED.size, Settled(number, OUTCOMES[outcome]), _finite(when)

    def _inserted(self, frame: bytes, at: int) -> _Read:
        _, number, when, count = INSERTED.unpack_from(frame, at)
        at += INSERTED.size
        end = at + count * BLOCK_BYTES
        if count > MAX_BLOCKS or end > len(frame):
            raise GarbledError(f"an insert of {count} blocks")
        blocks = tuple(array("q", frame[at:end]))
        return end, Inserted(self._endpoint(number), blocks, _finite(when)), 0.0

    def _judged(self, frame: bytes, at: int) -> _Read:
        _, pool, endpoint, verdict, first_byte_s, answer_s, bytes_per_s, began = JUDGED.unpack_from(
            frame, at
        )
        judged = Judged(
            self._pool(pool),
            self._endpoint(endpoint),
            VERDICTS[verdict],
            _known(first_byte_s),
            _known(answer_s),
            _known(bytes_per_s),
            bool(began),
        )
        return at + JUDGED.size, judged, 0.0

    def _worded(self, frame: bytes, at: int) -> _Read:
        (kind, *fields), end = _value(frame, at)
        return end, _WORDS[kind](*fields), 0.0

    def _pool(self, number: int) -> str:
        name = self._names[number]
        if not isinstance(name, str):
            raise GarbledError(f"number {number} is no pool")
        return name

    def _endpoint(self, number: int) -> EndpointKey:
        name = self._names[number]
        if isinstance(name, str):
            raise GarbledError(f"number {number} is no endpoint")
        return name


def _value(frame: bytes, at: int) -> tuple[Any, int]:
    _, length = JSON.unpack_from(frame, at)
    at += JSON.size
    if length > min(MAX_JSON, len(frame) - at):
        raise GarbledError(f"a record of {length} bytes")
    return orjson.loads(frame[at : at + length]), at + length


def _finite(value: float) -> float:
    if not isfinite(value):
        raise GarbledError(f"{value} where a time stands")
    return value


def _known(value: float) -> float | None:
    if isnan(value):
        return None
    if not 0.0 <= value < inf:
        raise GarbledError(f"{value} where a duration or a rate stands")
    return value


def _key(value: Any) -> EndpointKey:
    name, incarnation = value
    return EndpointKey(_text(name), int(incarnation))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise GarbledError(f"{value!r:.80} where a text stands")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)):
        raise GarbledError(f"{value!r:.80} where a number stands")
    return float(value)


def _sequence(value: Any) -> SequenceKey:
    model, version, name = value
    if not isinstance(name, (int, str)):
        raise GarbledError(f"{name!r:.80} where a sequence stands")
    return SequenceKey(_text(model), _text(version), name)


def _lease(pool: Any, sequence: Any, endpoint: Any, variant: Any, expires: Any, fresh: Any) -> Word:
    lease = Lease(_key(endpoint), _text(variant), _number(expires))
    return Leased(LeaseKey(_text(pool), _sequence(sequence)), lease, bool(fresh))


def _release(pool: Any, sequence: Any) -> Word:
    return Released(LeaseKey(_text(pool), _sequence(sequence)))


def _heard(endpoint: Any, source: Any, at: Any, readings: Any) -> Word:
    return Heard(
        _text(endpoint), _text(source), tuple([_reading(each) for each in readings]), _number(at)
    )


def _reading(value: Any) -> Reading:
    if not all(isinstance(value[name], _SCALARS) for name in value if name != "failures_per_s"):
        raise GarbledError("a reading has a field that is no scalar")
    failures = tuple([(_text(why), _number(rate)) for why, rate in value["failures_per_s"]])
    return Reading(**{**value, "failures_per_s": failures})


def _probed(pool: Any, endpoint: Any, ready: Any) -> Word:
    return Probed(_text(pool), _key(endpoint), bool(ready))


def _indexed(pool: Any, endpoint: Any, why: Any) -> Word:
    return Indexed(_text(pool), _key(endpoint), None if why is None else _text(why))


_WORDS: Final[dict[str, Callable[..., Word]]] = {
    "lease": _lease,
    "release": _release,
    "heard": _heard,
    "restarted": lambda endpoint: Restarted(_text(endpoint)),
    "failed": lambda endpoint, failures: Failed(_text(endpoint), int(failures)),
    "push-ended": lambda endpoint: PushEnded(_text(endpoint)),
    "probed": _probed,
    "indexed": _indexed,
    "begun": Begun,
}
