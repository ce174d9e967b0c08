"""Streams of peer workers: the stored corpus, and Hypothesis."""

from __future__ import annotations

from fuzz.corpus import inputs
from fuzz.workers import one_stream
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.blame.deaths import Who
from ext_proc.blame.fingerprint import BYTES
from ext_proc.blame.law import Effect
from ext_proc.feedback.entries import Judged
from ext_proc.routing.cache.index_events import Inserted
from ext_proc.routing.cache.trials import Confirmed, Withdrawn
from ext_proc.routing.peers import Share
from ext_proc.routing.state.leases import Lease, Leased, LeaseKey, Released
from ext_proc.routing.suspicion import (
    CallerLeft,
    Died,
    Gone,
    SuspectBody,
    SuspectCleared,
    SuspectRun,
)
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.request import SequenceKey
from ext_proc.workers.encode import Encoder

CASES = inputs("workers")
KEYS = st.builds(EndpointKey, st.sampled_from(["r1", "r2", "r3", "gone"]), st.just(1))
NAMES = st.sampled_from(["r1", "r2", "r3", "gone", ""])
TIMES = st.sampled_from([0.0, 1.0, 2.5, 30.0, 90.0, -5.0, 1e18])
MARKS = st.sampled_from([bytes([number]) * BYTES for number in range(3)])
TICKETS = st.integers(0, 3) | st.just(2**64 - 1)
SEQUENCES = st.builds(LeaseKey, st.just("llm"), st.builds(SequenceKey, NAMES, NAMES, TICKETS))
BLOCKS = st.lists(st.integers(-3, 3), max_size=5).map(tuple)
COUNTS = st.sampled_from([0, 1, 7])
WORK = st.sampled_from([0.0, 5.0, 1e300])
KINDS = st.lists(MARKS, max_size=2).map(tuple)
WHO = st.builds(Who, st.none() | MARKS, KINDS, st.none() | MARKS)
EVENTS = st.one_of(
    st.builds(Died, NAMES, WHO, TIMES, st.booleans()),
    st.builds(SuspectBody, MARKS, st.just("llm"), st.binary(max_size=40), KINDS),
    st.builds(SuspectCleared, MARKS),
    st.builds(SuspectRun, MARKS, st.none() | NAMES, TIMES),
    st.builds(Gone, NAMES, TIMES),
    st.builds(CallerLeft, NAMES, TIMES),
    st.builds(Inserted, KEYS, BLOCKS, TIMES, st.sampled_from([0, 7]), TICKETS),
    st.builds(Confirmed, TICKETS),
    st.builds(Withdrawn, TICKETS),
    st.builds(Share, st.just("llm"), KEYS, COUNTS, WORK, COUNTS, WORK),
    st.builds(Leased, SEQUENCES, st.builds(Lease, KEYS, st.just("stable"), TIMES)),
    st.builds(Released, SEQUENCES),
    st.builds(Judged, st.just("llm"), KEYS, st.sampled_from(Effect), origin=st.integers(0, 3)),
)


def test_the_corpus():
    """Each stored stream keeps every promise."""
    assert len(CASES) > 3
    for case in CASES:
        try:
            one_stream(case.data)
        except Exception as error:
            raise AssertionError(case.name) from error


@given(st.lists(EVENTS, max_size=20))
@settings(deadline=None)
def test_any_events_in_any_order(events):
    """Well-formed events of a peer worker leave a state that can be sent on."""
    encoder = Encoder()
    for event in events:
        encoder.put(event)
    one_stream(bytes(encoder.batch))


@given(st.sampled_from(CASES), st.data())
@settings(deadline=None)
def test_bent_streams(case, data):
    """Stored streams with changed bytes."""
    bent = bytearray(case.data)
    for _ in range(data.draw(st.integers(1, 4))):
        bent[data.draw(st.integers(0, len(bent) - 1))] = data.draw(st.integers(0, 255))
    one_stream(bytes(bent))


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_random_bytes(data):
    """Random bytes are refused."""
    one_stream(data)
