"""KV events of SGLang are read as it writes them.

No SGLang runs on a machine without a GPU, so these bytes are not recorded: its own library,
msgspec, writes them from its definitions, which are repeated here (``disaggregation/kv_events.py``,
first at commit 006d053; maps as ``mem_cache/events.py`` at commit 06f643f fills them).
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ext_proc.requests.blocks import chained
from ext_proc.routing.cache.index_events import Stored
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.request import Features, Form
from ext_proc.telemetry.kv_events.decode import decode
from ext_proc.telemetry.kv_events.events import AllBlocksCleared, BlockRemoved
from ext_proc.telemetry.kv_events.translate import Translator

SIZE = 16
IDS = list(range(100, 100 + 2 * SIZE))
KEY = EndpointKey("r0", 1)


class OldBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[Any]


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[Any]
    attn_dp_rank: int | None = None


class OldStored(msgspec.Struct, array_like=True, omit_defaults=True, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[Any]
    block_size: int
    lora_id: int | None


class Metadata(msgspec.Struct, omit_defaults=True):
    cache_salt: str


class RowStored(msgspec.Struct, array_like=True, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[Any]
    block_size: int
    lora_id: int | None
    medium: str | None = None


class SaltedRow(RowStored, tag="BlockStored", array_like=True, kw_only=True):
    metadata: Metadata


class MapStored(msgspec.Struct, omit_defaults=True, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[Any]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    lora_name: str | None = None


class Removed(msgspec.Struct, array_like=True, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None = None


class Emptied(msgspec.Struct, array_like=True, tag="AllBlocksCleared"):
    pass


FIRST = ([-5, 7], None, IDS, SIZE, None)
VERSIONS = {
    "first": OldBatch(1.0, [OldStored(*FIRST)]),
    "rows": Batch(1.0, [RowStored(*FIRST, "GPU")], 0),
    "maps": Batch(1.0, [MapStored(*FIRST, "GPU", session_id="s")], 0),
}
SALTED = {
    "rows": Batch(1.0, [SaltedRow(*FIRST, "GPU", metadata=Metadata("tenant"))]),
    "maps": Batch(1.0, [MapStored(*FIRST, "GPU", cache_salt="tenant")]),
}


def believed(batch: Any) -> list[Stored]:
    """Return what the index would be told."""
    translator = Translator(
        KEY, 0, model="m", models={"m"}, block_tokens=SIZE, block=lambda *_: None
    )
    found = [translator.take(each) for each in decode(msgspec.msgpack.encode(batch)).events]
    return [each for each in found if isinstance(each, Stored)]


def blocks_of(salt: str | None, adapter: str | None = None) -> tuple[int, ...]:
    """Return the blocks of a request with these tokens."""
    packed = b"".join(each.to_bytes(4, "little") for each in IDS)
    return chained(Features(Form.SGLANG, model="m", salt=salt, adapter=adapter), packed, SIZE * 4)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_matches_what_sglang_has_stored(version: str) -> None:
    """In each of the encodings that its releases have had."""
    (stored,) = believed(VERSIONS[version])
    assert stored.blocks == blocks_of(None)


@pytest.mark.parametrize("version", SALTED)
def test_blocks_with_a_salt_are_those_of_that_salt_only(version: str) -> None:
    """A request of another tenant, or without a salt, must not be thought cached there."""
    (stored,) = believed(SALTED[version])
    assert stored.blocks == blocks_of("tenant")
    assert stored.blocks != blocks_of(None)


def test_an_adapter_is_named_where_maps_are_written() -> None:
    """Its blocks are no other request's."""
    (stored,) = believed(Batch(1.0, [MapStored(*FIRST, "GPU", lora_name="sql")]))
    assert stored.blocks == blocks_of(None, "sql")


def test_blocks_on_the_host_do_not_count() -> None:
    """They would have to be loaded first."""
    assert believed(Batch(1.0, [RowStored(*FIRST, "CPU_PINNED")])) == []


def test_pairs_of_tokens_do_not_spoil_a_batch() -> None:
    """A draft model makes them; the rest of the batch, removals above all, is still true."""
    pairs = RowStored([9], None, [[each, each + 1] for each in IDS[:SIZE]], SIZE, None, "GPU")
    batch = Batch(1.0, [pairs, Removed([3], "GPU"), Emptied()])
    found = decode(msgspec.msgpack.encode(batch))
    assert (found.events, found.unknown) == ((BlockRemoved((3,), "GPU"), AllBlocksCleared()), 1)
