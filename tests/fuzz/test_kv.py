"""Random and damaged batches of KV events."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from fuzz.kv import one_batch
from hypothesis import given
from hypothesis import strategies as st

RECORDED = [
    bytes.fromhex(json.loads(line)["payload_hex"])
    for line in (
        Path(__file__).parents[1] / "contract" / "fixtures" / "vllm-0.32.0" / "kv_events.jsonl"
    )
    .read_text()
    .splitlines()
]
NAMES = st.lists(st.integers(0, 3), max_size=3)
EVENTS = st.one_of(
    st.tuples(
        st.just("BlockStored"),
        NAMES,
        st.none() | st.integers(0, 3),
        st.lists(st.integers(0, 2), max_size=6),
        st.integers(1, 3),
        st.none(),
        st.sampled_from([None, "GPU", "CPU"]),
        st.sampled_from([None, "a", "b"]),
    ),
    st.tuples(st.just("BlockRemoved"), NAMES),
    st.tuples(st.just("AllBlocksCleared")),
    st.recursive(st.none() | st.integers(-5, 5) | st.binary(max_size=9), st.lists, max_leaves=8),
)


def framed(number: int, payload: bytes) -> bytes:
    """Frame a batch as the target reads it."""
    return bytes([number]) + len(payload).to_bytes(2, "big") + payload


@given(st.binary(max_size=300))
def test_random_bytes(data):
    """The index stays within bounds and can be emptied, whatever the bytes are."""
    one_batch(data)


@given(st.lists(st.tuples(st.integers(0, 5), st.lists(EVENTS, max_size=4)), max_size=8))
def test_random_events(batches):
    """Well-formed but meaningless events do no harm."""
    one_batch(b"".join(framed(n, msgspec.msgpack.encode([0.0, events])) for n, events in batches))


@given(st.data())
def test_damaged_recordings(data):
    """Recorded batches with changed bytes are read or refused."""
    pieces = []
    for number, payload in enumerate(RECORDED):
        body = bytearray(payload)
        for _ in range(data.draw(st.integers(0, 3))):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        pieces.append(framed(number, bytes(body)))
    one_batch(b"".join(pieces))
