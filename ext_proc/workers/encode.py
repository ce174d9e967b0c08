"""Encodes messages to records; ``records`` states the format. Pure."""

from __future__ import annotations

from array import array
from math import nan
from typing import TYPE_CHECKING, Any

import orjson

from ext_proc.feedback.entries import Judged
from ext_proc.routing.cache.index_events import Inserted
from ext_proc.routing.cache.trials import Confirmed, Withdrawn
from ext_proc.routing.peers import LatencySample, Share
from ext_proc.routing.state.leases import Leased
from ext_proc.workers.messages import NAMES, plain
from ext_proc.workers.records import (
    EFFECT_NUMBERS,
    INSERTED,
    JSON,
    JUDGED,
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
    framed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.values.pool import EndpointKey
    from ext_proc.workers.records import Message


class Encoder:
    """Encodes the messages of one worker; all its streams share the names.

    Attributes:
        batch: Records not sent yet. The code that sends them clears it.
    """

    def __init__(self) -> None:
        self.batch = bytearray()
        self._numbers: dict[EndpointKey | str, int] = {}
        self._names = bytearray()
        self._writers: dict[type, Callable[[Any, bytearray], None]] = {
            Share: self._share,
            LatencySample: self._sample,
            Inserted: self._inserted,
            Confirmed: self._confirmed,
            Withdrawn: self._withdrawn,
            Judged: self._judged,
            Leased: self._leased,
        }

    @property
    def full(self) -> bool:
        """Return whether the name table is full: all streams must be restarted."""
        return len(self._numbers) >= MAX_NAMES - 2

    def put(self, event: Message, into: bytearray | None = None) -> None:
        """Append a message.

        Args:
            event: The message.
            into: Buffer used instead of ``batch``; new names go to ``batch`` in any case.
        """
        write = self._writers.get(type(event), self._other)
        write(event, self.batch if into is None else into)

    def names(self) -> bytes:
        """Return all names sent so far, as frames: the beginning of a stream."""
        records = self._names
        frames = bytearray()
        start = at = 0
        while at < len(records):
            size = JSON.size + JSON.unpack_from(records, at)[1]
            if at + size - start > MAX_FRAME:
                frames += framed(records[start:at])
                start = at
            at += size
        return bytes(frames + framed(records[start:]))

    def _number(self, name: EndpointKey | str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._numbers)
            text = orjson.dumps(name if isinstance(name, str) else list(name))
            record = JSON.pack(TAG_NAME, len(text)) + text
            self._names += record
            self.batch += record
        return number

    def _share(self, event: Share, into: bytearray) -> None:
        pool, endpoint, in_flight, work, charges, prefilled, model = event
        name, number = self._number(pool), self._number(endpoint)
        counts = NO_MODEL if model is None else self._number(model)
        into += SHARE.pack(TAG_SHARE, name, number, counts, in_flight, charges, work, prefilled)

    def _sample(self, event: LatencySample, into: bytearray) -> None:
        ticket, ended = event
        _, endpoint, pool, work, at, prompted, drain, ahead = ticket[:8]
        into += SAMPLE.pack(
            TAG_SAMPLE,
            self._number(pool),
            self._number(endpoint),
            work,
            at,
            ended,
            nan if drain is None else drain,
            ahead,
            prompted,
        )

    def _inserted(self, event: Inserted, into: bytearray) -> None:
        endpoint, blocks, at, tenant, ticket, recomputed = event
        blocks = blocks[:MAX_BLOCKS]
        number = self._number(endpoint)
        into += INSERTED.pack(TAG_INSERTED, number, at, tenant, ticket, recomputed, len(blocks))
        into += array("q", blocks).tobytes()

    def _confirmed(self, event: Confirmed, into: bytearray) -> None:
        into += TRIED.pack(TAG_CONFIRMED, event.ticket)

    def _withdrawn(self, event: Withdrawn, into: bytearray) -> None:
        into += TRIED.pack(TAG_WITHDRAWN, event.ticket)

    def _judged(self, event: Judged, into: bytearray) -> None:
        pool, endpoint, effect, first_byte_s, answer_s, bytes_per_s, answered, *counts = event
        into += JUDGED.pack(
            TAG_JUDGED,
            self._number(pool),
            self._number(endpoint),
            EFFECT_NUMBERS[effect],
            nan if first_byte_s is None else first_byte_s,
            nan if answer_s is None else answer_s,
            nan if bytes_per_s is None else bytes_per_s,
            answered,
            *counts,
        )

    def _leased(self, event: Leased, into: bytearray) -> None:
        (pool, sequence), (endpoint, variant, expires) = event
        fields = [pool, list(sequence)], [list(endpoint), variant, expires]
        _json(into, [NAMES[Leased], *fields])

    def _other(self, event: Message, into: bytearray) -> None:
        _json(into, [NAMES[type(event)], *event])


def _json(into: bytearray, value: list[Any]) -> None:
    text = orjson.dumps(value, default=plain)
    if len(text) <= MAX_JSON:
        into += JSON.pack(TAG_JSON, len(text)) + text
