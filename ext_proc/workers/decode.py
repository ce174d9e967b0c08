"""Decodes records to messages; ``records`` states the format. Pure."""

from __future__ import annotations

import struct
from array import array
from math import inf, isnan
from typing import TYPE_CHECKING, Any, Final

import orjson

from ext_proc.feedback.entries import Judged
from ext_proc.routing.cache.index_events import Inserted
from ext_proc.routing.cache.trials import Confirmed, Withdrawn
from ext_proc.routing.peers import LatencySample, Share
from ext_proc.routing.state.ledger import MAX_TICKETS
from ext_proc.routing.values.ticket import Ticket
from ext_proc.workers.messages import READERS, amount, endpoint_key, finite
from ext_proc.workers.news import OtherVersion
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
    greeted_version,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ext_proc.routing.values.pool import EndpointKey
    from ext_proc.workers.records import Message

    _Read = tuple[int, Message | None]
    """Offset of the next record, and the message of this one if it has one."""

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
        rest, readers = self._rest, self._readers
        rest += data
        at = 0
        try:
            while len(rest) - at >= LENGTH.size:
                (length,) = LENGTH.unpack_from(rest, at)
                if length > MAX_FRAME:
                    version = greeted_version(rest[at:])
                    if version is not None:
                        yield OtherVersion(version)
                    raise GarbledError(f"frame of {length} bytes; at most {MAX_FRAME} are allowed")
                end = at + LENGTH.size + length
                if end > len(rest):
                    break
                frame = bytes(rest[at + LENGTH.size : end])
                at, record = end, 0
                while record < length:
                    try:
                        record, message = readers[frame[record]](frame, record)
                    except _FAULTS as error:
                        raise GarbledError(f"unreadable record: {error!r}") from error
                    if message is not None:
                        yield message
        finally:
            del rest[:at]

    def _name(self, frame: bytes, at: int) -> _Read:
        value, end = _value(frame, at)
        if len(self._names) >= MAX_NAMES:
            raise GarbledError(f"more than {MAX_NAMES} names")
        self._names.append(value if isinstance(value, str) else endpoint_key(value))
        return end, None

    def _share(self, frame: bytes, at: int) -> _Read:
        _, pool, endpoint, model, in_flight, charges, work, prefilled = SHARE.unpack_from(frame, at)
        if in_flight > MAX_TICKETS:
            raise GarbledError(f"{in_flight} requests in flight")
        share = Share(
            self._pool(pool),
            self._endpoint(endpoint),
            in_flight,
            amount(work),
            charges,
            amount(prefilled),
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
            amount(work),
            finite(began),
            bool(prompted),
            _known(drain),
            ahead,
        )
        return at + SAMPLE.size, LatencySample(ticket, finite(ended))

    def _inserted(self, frame: bytes, at: int) -> _Read:
        _, number, when, tenant, ticket, again, count = INSERTED.unpack_from(frame, at)
        at += INSERTED.size
        end = at + count * BLOCK_BYTES
        if count > MAX_BLOCKS or end > len(frame):
            raise GarbledError(f"invalid insert of {count} blocks")
        blocks = tuple(array("q", frame[at:end]))
        endpoint = self._endpoint(number)
        return end, Inserted(endpoint, blocks, finite(when), tenant, ticket, bool(again))

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
        (name, *fields), end = _value(frame, at)
        message: Message = READERS[name](fields)
        return end, message

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


def _known(value: float) -> float | None:
    if isnan(value):
        return None
    if not 0.0 <= value < inf:
        raise GarbledError(f"expected a duration or a rate, got {value}")
    return value
