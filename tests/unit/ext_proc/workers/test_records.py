"""Messages as bytes: encoding and decoding are inverse, and invalid streams are refused."""

from __future__ import annotations

import contextlib
import json
import string
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.blame.deaths import Who
from ext_proc.blame.fingerprint import BYTES
from ext_proc.blame.law import Effect
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
from ext_proc.routing.values.listing import Listing, PlacementState, Row
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.request import SequenceKey
from ext_proc.routing.values.ticket import Ticket
from ext_proc.telemetry.news import PushEnded, ReadingsUpdate, Restarted, ScrapeFailed
from ext_proc.workers.decode import Decoder
from ext_proc.workers.encode import Encoder
from ext_proc.workers.messages import NAMES as JSON_NAMES
from ext_proc.workers.news import Looked, LookWanted, OtherVersion, Probed, SnapshotEnd
from ext_proc.workers.records import (
    HELLO,
    INSERTED,
    JSON,
    LENGTH,
    MAX_BLOCKS,
    MAX_FRAME,
    NO_MODEL,
    SAMPLE,
    SHARE,
    TAG_INSERTED,
    TAG_JSON,
    TAG_NAME,
    TAG_SAMPLE,
    TAG_SHARE,
    VERSION,
    GarbledError,
    framed,
)
from support.record_group import MESSAGES, recorded

RECORDED = Path(__file__).parents[2] / "fixtures/group-records.json"

texts = st.text(string.ascii_letters + "ü- ", max_size=12)
keys = st.builds(EndpointKey, texts, st.integers(0, 2**62))
times = st.floats(0.0, 1e9)
maybe = st.none() | times
blocks = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30).map(tuple)
sequences = st.builds(
    LeaseKey,
    texts,
    st.builds(SequenceKey, texts, texts, st.integers(0, 2**64 - 1) | texts),
)
readings = st.builds(
    Reading,
    at=times,
    model=st.none() | texts,
    queued=maybe,
    kv_used=maybe,
    saturated=st.none() | st.booleans(),
    failures_per_s=st.lists(st.tuples(texts, times), max_size=2).map(tuple),
)
listings = st.builds(
    Listing,
    times,
    st.lists(st.builds(Row, texts, texts, st.sampled_from(PlacementState), texts), max_size=3).map(
        tuple
    ),
    st.booleans(),
)
fingerprints = st.binary(min_size=BYTES, max_size=BYTES)
kinds = st.lists(fingerprints, max_size=3).map(tuple)
events = st.one_of(
    st.builds(
        Share,
        texts,
        keys,
        st.integers(0, MAX_TICKETS),
        times,
        st.integers(0, 2**63),
        times,
        st.none() | texts,
    ),
    st.builds(
        LatencySample,
        st.builds(
            Ticket,
            st.just(0),
            keys,
            texts,
            times,
            times,
            st.booleans(),
            maybe,
            st.integers(0, 2**31),
        ),
        times,
    ),
    st.builds(Inserted, keys, blocks, times, st.integers(-1, 2**63 - 1), st.integers(0, 2**64 - 1)),
    st.builds(Confirmed, st.integers(0, 2**64 - 1)),
    st.builds(Withdrawn, st.integers(0, 2**64 - 1)),
    st.builds(Leased, sequences, st.builds(Lease, keys, texts, times)),
    st.builds(Released, sequences),
    st.builds(
        Died,
        texts,
        st.builds(Who, st.none() | fingerprints, kinds, st.none() | fingerprints),
        times,
        st.booleans(),
    ),
    st.builds(SuspectBody, fingerprints, texts, st.binary(max_size=99), kinds),
    st.builds(SuspectCleared, fingerprints),
    st.builds(SuspectRun, fingerprints, st.none() | texts, times),
    st.builds(Gone, texts, times),
    st.builds(CallerLeft, texts, times),
    st.builds(ReadingsUpdate, texts, texts, st.lists(readings, max_size=2).map(tuple), times),
    st.builds(Restarted, texts),
    st.builds(ScrapeFailed, texts, st.integers(0, 1000)),
    st.builds(PushEnded, texts),
    st.just(SnapshotEnd()),
    st.builds(Probed, texts, keys, st.booleans()),
    st.builds(Looked, keys, st.none() | listings),
    st.builds(LookWanted, keys),
    st.builds(
        Judged,
        texts,
        keys,
        st.sampled_from(Effect),
        maybe,
        maybe,
        maybe,
        st.booleans(),
        st.integers(1, 2**31),
        st.integers(0, 2**63 - 1),
    ),
)


@given(st.lists(events, max_size=20), st.lists(st.integers(1, 200), max_size=30))
def test_what_was_written_is_read(written, cuts):
    """However the bytes are split, the same messages are decoded, in order."""
    encoder = Encoder()
    stream = bytearray()
    for number, event in enumerate(written):
        encoder.put(event)
        if number % 3 == 2:
            stream += framed(encoder.batch)
            encoder.batch.clear()
    stream += framed(encoder.batch)
    decoder, read = Decoder(), []
    for cut in cuts:
        read += decoder.feed(bytes(stream[:cut]))
        del stream[:cut]
    read += decoder.feed(bytes(stream))
    assert read == written


@given(st.lists(events, max_size=10), st.lists(events, max_size=10))
def test_a_stream_that_begins_later_knows_the_names(before, after):
    """Names are repeated at the beginning, so that the rest can be decoded."""
    encoder = Encoder()
    for event in before:
        encoder.put(event)
    encoder.batch.clear()
    stream = encoder.names()
    for event in after:
        encoder.put(event)
    assert list(Decoder().feed(stream + framed(encoder.batch))) == after


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_read_or_refused(data, whole):
    """Only ``GarbledError`` is raised for bytes that are not a stream."""
    with contextlib.suppress(GarbledError):
        list(Decoder().feed(framed(data) if whole else data))


@given(st.lists(events, min_size=1, max_size=5), st.data())
def test_bent_streams_are_read_or_refused(written, data):
    """A stream with changed bytes yields messages or ``GarbledError``."""
    encoder = Encoder()
    for event in written:
        encoder.put(event)
    records = bytearray(encoder.batch)
    for _ in range(data.draw(st.integers(1, 4))):
        records[data.draw(st.integers(0, len(records) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(GarbledError):
        list(Decoder().feed(framed(records)))


def test_a_long_insert_keeps_its_root():
    """Of more blocks than a record holds the first ones are sent."""
    encoder = Encoder()
    encoder.put(Inserted(EndpointKey("a", 1), tuple(range(MAX_BLOCKS + 1)), 0.0))
    (event,) = Decoder().feed(framed(encoder.batch))
    assert event.blocks == tuple(range(MAX_BLOCKS))


def name(text: bytes) -> bytes:
    return JSON.pack(TAG_NAME, len(text)) + text


TEXT_FOR_NUMBER = (
    b'["heard","a","page",[{"at":1.0,"queued":"9","adapters":null,"adapters_waiting":null,'
    b'"failures_per_s":[]}],1.0]'
)
NAMES = name(b'"pool"') + name(b'["a", 1]')


@pytest.mark.parametrize(
    "records",
    [
        b"\x63",  # no such tag
        SHARE.pack(TAG_SHARE, 0, 0, 0, 1, 1, 1.0, 1.0),  # a number without a name
        NAMES + SHARE.pack(TAG_SHARE, 0, 1, 0, MAX_TICKETS + 1, 1, 1.0, 1.0),
        NAMES + SHARE.pack(TAG_SHARE, 0, 1, 0, 1, 1, -1.0, 1.0),
        NAMES + SHARE.pack(TAG_SHARE, 0, 1, 0, 1, 1, 1.0, float("nan")),
        NAMES + SHARE.pack(TAG_SHARE, 0, 1, 0, 1, 1, 1.0, 1.0)[:-1],  # cut
        NAMES + SHARE.pack(TAG_SHARE, 1, 0, 0, 1, 1, 1.0, 1.0),  # a pool for an endpoint
        NAMES + SHARE.pack(TAG_SHARE, 0, 1, 1, 1, 1, 1.0, 1.0),  # an endpoint for a model
        NAMES + SAMPLE.pack(TAG_SAMPLE, 0, 1, 1.0, 1.0, float("inf"), 0.0, 0, 1),
        INSERTED.pack(TAG_INSERTED, 0, 0.0, 0, 0, 0, 0),  # a number without a name
        name(b'"pool"') + INSERTED.pack(TAG_INSERTED, 0, 0.0, 0, 0, 0, 0),  # a pool for an endpoint
        name(b'["a", 1]')
        + INSERTED.pack(TAG_INSERTED, 0, 0.0, 0, 0, 0, 2)
        + array("q", [1]).tobytes(),
        name(b'["a", 1]') + INSERTED.pack(TAG_INSERTED, 0, 0.0, 0, 0, 0, 2**32 - 1),
        name(b"{}"),
        JSON.pack(TAG_JSON, 2**31) + b"[]",
        JSON.pack(TAG_JSON, 9) + b'["what?"]',
        JSON.pack(TAG_JSON, 2) + b"[]",
        JSON.pack(TAG_JSON, 14) + b'["restarted",1]'[:14],
        JSON.pack(TAG_JSON, 44) + b'["heard","a","page",1.0,[{"queued":[1,2,3]}]',
        JSON.pack(TAG_JSON, len(TEXT_FOR_NUMBER)) + TEXT_FOR_NUMBER,
        NAMES + SHARE.pack(TAG_SHARE, 0, 1, NO_MODEL, 1, 1, 1.0, 1e300),
    ],
)
def test_what_breaks_the_format_is_refused(records):
    """Each exceeded bound and each invalid value ends the stream."""
    with pytest.raises(GarbledError):
        list(Decoder().feed(framed(records)))


def test_the_bytes_of_this_version_are_those_recorded():
    """So that pickers of two releases either understand each other or have two versions."""
    kept = json.loads(RECORDED.read_text())
    assert kept["greeting"] == HELLO.hex(), "record them: see support.record_group"
    assert kept == recorded(), (
        f"the bytes of version {VERSION} changed: raise VERSION of ext_proc.workers.records, "
        "then record them (support.record_group)"
    )


def test_each_kind_of_record_is_recorded_and_read():
    """None can change without a new version."""
    assert {type(each) for each in MESSAGES} == {*JSON_NAMES, *Encoder()._writers}
    decoder, (_, *frames) = Decoder(), json.loads(RECORDED.read_text()).values()
    read = [each for frame in frames for each in decoder.feed(bytes.fromhex(frame))]
    assert read == list(MESSAGES)


@pytest.mark.parametrize("version", [9, 100])
def test_a_greeting_of_another_version_is_told_before_the_stream_ends(version):
    """No frame begins with it."""
    read = Decoder().feed(b"tidegate %d " % version)
    assert next(read) == OtherVersion(version)
    with pytest.raises(GarbledError):
        next(read)


def test_a_huge_frame_is_refused_before_it_is_kept():
    """The length alone suffices to refuse it."""
    with pytest.raises(GarbledError):
        list(Decoder().feed(LENGTH.pack(MAX_FRAME + 1)))
