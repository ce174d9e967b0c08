"""Encodes messages to records; ``records`` states the format. Pure."""

from __future__ import annotations

from array import array
from base64 import b64encode
from math import nan
from typing import TYPE_CHECKING, Any

import orjson

from ext_proc.feedback.entries import Judged
from ext_proc.routing.cache.index_events import Inserted
from ext_proc.routing.cache.trials import Confirmed, Withdrawn
from ext_proc.routing.peers import LatencySample, Share
from ext_proc.routing.state.leases import Leased, Released
from ext_proc.routing.suspicion import (
    CallerLeft,
    Died,
    Gone,
    SuspectBody,
    SuspectCleared,
    SuspectRun,
)
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
            Leased: self._leased,
            Released: self._released,
            ReadingsUpdate: self._readings_update,
            Restarted: self._restarted,
            ScrapeFailed: self._failed,
            PushEnded: self._push_ended,
            Judged: self._judged,
            Probed: self._probed,
            Looked: self._looked,
            LookWanted: self._look_wanted,
            Hello: self._hello,
            OwnerAsk: self._ask,
            OwnerAnswer: self._answer,
            SnapshotEnd: self._snapshot_end,
            Died: self._died,
            SuspectBody: self._suspect_body,
            SuspectCleared: self._cleared,
            Gone: self._gone,
            CallerLeft: self._abandoned,
            SuspectRun: self._suspect_runs,
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
        self._writers[type(event)](event, self.batch if into is None else into)

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

    def _leased(self, event: Leased, into: bytearray) -> None:
        (pool, sequence), (endpoint, variant, expires) = event
        _json(into, ["lease", pool, list(sequence), list(endpoint), variant, expires])

    def _released(self, event: Released, into: bytearray) -> None:
        _json(into, ["release", event.key.pool, list(event.key.sequence)])

    def _readings_update(self, event: ReadingsUpdate, into: bytearray) -> None:
        _json(into, ["heard", event.endpoint, event.source, event.at, list(event.readings)])

    def _restarted(self, event: Restarted, into: bytearray) -> None:
        _json(into, ["restarted", event.endpoint])

    def _failed(self, event: ScrapeFailed, into: bytearray) -> None:
        _json(into, ["failed", event.endpoint, event.failures])

    def _push_ended(self, event: PushEnded, into: bytearray) -> None:
        _json(into, ["push-ended", event.endpoint])

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

    def _hello(self, event: Hello, into: bytearray) -> None:
        _json(into, ["hello", *event])

    def _ask(self, event: OwnerAsk, into: bytearray) -> None:
        number, (pool, sequence, endpoint, variant, idle_s, instead, _) = event
        before = None if instead is None else list(instead)
        row = ["ask", number, pool, list(sequence), list(endpoint), variant, idle_s, before]
        _json(into, row)

    def _answer(self, event: OwnerAnswer, into: bytearray) -> None:
        _json(into, ["answer", *event])

    def _snapshot_end(self, _: SnapshotEnd, into: bytearray) -> None:
        _json(into, ["begun"])

    def _died(self, event: Died, into: bytearray) -> None:
        replica, (fingerprint, kinds, caller), at, answered = event
        who = [fingerprint and fingerprint.hex(), _hex(kinds), caller and caller.hex()]
        _json(into, ["died", replica, *who, at, answered])

    def _suspect_body(self, event: SuspectBody, into: bytearray) -> None:
        fingerprint, pool, body, kinds = event
        text = b64encode(body).decode()
        _json(into, ["suspect-body", fingerprint.hex(), pool, text, _hex(kinds)])

    def _cleared(self, event: SuspectCleared, into: bytearray) -> None:
        _json(into, ["cleared", event.fingerprint.hex()])

    def _gone(self, event: Gone, into: bytearray) -> None:
        _json(into, ["gone", *event])

    def _abandoned(self, event: CallerLeft, into: bytearray) -> None:
        _json(into, ["abandoned", *event])

    def _suspect_runs(self, event: SuspectRun, into: bytearray) -> None:
        fingerprint, replica, at = event
        _json(into, ["suspect-runs", fingerprint.hex(), replica, at])

    def _probed(self, event: Probed, into: bytearray) -> None:
        pool, endpoint, ready, why = event
        _json(into, ["probed", pool, list(endpoint), ready, why])

    def _looked(self, event: Looked, into: bytearray) -> None:
        endpoint, listing = event
        if listing is None:
            _json(into, ["looked", list(endpoint), None, [], False])
        else:
            rows = [list(row) for row in listing.rows]
            _json(into, ["looked", list(endpoint), listing.at, rows, listing.whole])

    def _look_wanted(self, event: LookWanted, into: bytearray) -> None:
        _json(into, ["look-wanted", list(event.endpoint)])


def _hex(kinds: tuple[bytes, ...]) -> list[str]:
    return [each.hex() for each in kinds]


def _json(into: bytearray, value: list[Any]) -> None:
    text = orjson.dumps(value, default=sorted)  # adapters of readings are sets of names
    if len(text) <= MAX_JSON:
        into += JSON.pack(TAG_JSON, len(text)) + text
