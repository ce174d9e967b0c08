"""Published batches in both encodings, and what causes a rejection."""

from __future__ import annotations

import msgspec
import pytest

from ext_proc.telemetry.kv_events.decode import MAX_BATCH_BYTES, MAX_EVENTS, BadBatch, decode
from ext_proc.telemetry.kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored

STORED = {
    "type": "BlockStored",
    "block_hashes": [(1 << 63) + 5, b"\xff" * 24 + (7).to_bytes(8, "big")],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": "sql",
    "extra_keys": [["sql", "tenant"], None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
    "something_new": {"a": 1},
}
EXPECTED = BlockStored(
    (5, 7), None, (1, 2, 3, 4), 2, "sql", (("sql", "tenant"), ()), "GPU", 0, "full_attention"
)


def batch(*events):
    return msgspec.msgpack.encode([1.0, list(events), 0])


def test_both_encodings_say_the_same():
    """Structs may be maps or arrays, for events and batches."""
    rows = list(STORED.values())[:-1]
    removed = {"type": "BlockRemoved", "block_hashes": [9], "medium": "GPU"}
    as_map = {"ts": 1.0, "events": [STORED, removed, {"type": "AllBlocksCleared"}]}
    as_rows = [1.0, [rows, ["BlockRemoved", [9], "GPU"], ["AllBlocksCleared"]]]
    for whole in (as_map, as_rows):
        found = decode(msgspec.msgpack.encode(whole))
        assert found.events == (EXPECTED, BlockRemoved((9,), "GPU"), AllBlocksCleared())
        assert found.unknown == 0


def test_the_first_version_has_fewer_fields():
    """In vLLM 0.9 there was no adapter name: the adapter's number is used instead."""
    (event,) = decode(batch(["BlockStored", [1], 2, [7, 8], 2, 3])).events
    assert event == BlockStored((1,), 2, (7, 8), 2, "3")


def test_unknown_kinds_are_counted():
    """An event of an unknown kind has no other effect."""
    found = decode(batch({"type": "BlockMoved"}, ["BlockCopied", 1], STORED))
    assert (len(found.events), found.unknown) == (1, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"block_hashes": 5},
        {"block_hashes": ["x", "y"]},
        {"block_hashes": [True, 1]},
        {"block_hashes": [b"short", 1]},
        {"token_ids": [1, 2, 3]},
        {"token_ids": [1, 2, 3, -1]},
        {"token_ids": [1, 2, 3, 2**32]},
        {"token_ids": [1, 2, 3, 1.5]},
        {"block_size": 0},
        {"block_size": None},
        {"parent_block_hash": "x"},
        {"medium": 1},
        {"lora_name": "x" * 300},
        {"group_idx": -1},
        {"extra_keys": [None]},
        {"extra_keys": [None, 5]},
    ],
)
def test_what_does_not_fit_refuses_the_batch(wrong):
    """One invalid field makes the whole batch unreadable."""
    with pytest.raises(BadBatch):
        decode(batch({**STORED, **wrong}))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x93",
        msgspec.msgpack.encode(5),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode([1.0, {}]),
        msgspec.msgpack.encode([1.0, [5]]),
        msgspec.msgpack.encode([1.0, [{}]]),
        msgspec.msgpack.encode([1.0, [[]]]),
        msgspec.msgpack.encode([1.0, [{"type": {}}]]),
        b"\x81\x81\x01\x02\x03",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
        b"\xd9\x01\xff",
    ],
)
def test_what_is_no_batch(payload):
    """Broken MessagePack and other structures are refused with one kind of error."""
    with pytest.raises(BadBatch):
        decode(payload)


def test_bounds():
    """Size and number of events are bounded."""
    with pytest.raises(BadBatch, match="bytes; at most"):
        decode(b"x" * (MAX_BATCH_BYTES + 1))
    many = batch(*[["AllBlocksCleared"]] * MAX_EVENTS)
    assert len(decode(many).events) == MAX_EVENTS
    with pytest.raises(BadBatch, match="at most"):
        decode(batch(*[["AllBlocksCleared"]] * (MAX_EVENTS + 1)))
