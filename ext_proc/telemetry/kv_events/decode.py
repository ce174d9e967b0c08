"""Decodes a published batch (MessagePack) into events. Pure.

Source: vLLM, ``vllm/distributed/kv_events.py``. Older releases write structs as arrays, whose
fields have a fixed order and were extended at the end; 0.32.0 (recorded) writes maps. A batch may
be either and contain either. SGLang (``python/sglang/srt/disaggregation/kv_events.py``) writes the
arrays of vLLM's first version and behind ``medium`` a map with the cache salt of a request that has
one; newer releases write maps with a field ``cache_salt``. All of these are accepted. Unknown
fields and kinds of events are ignored, as are blocks whose tokens are pairs (SGLang's, with a draft
model). Anything else that does not fit rejects the whole batch, and its content is lost.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from ext_proc.routing.cache.index_events import NAME_BITS
from ext_proc.telemetry.kv_events.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
)

MAX_BATCH_BYTES: Final = 2 * 2**20
"""Half a million tokens; an engine computes about ten thousand in one step."""
MAX_EVENTS: Final = 65_536
MAX_BLOCK_SIZE: Final = 16_384
MAX_TEXT: Final = 256

_NAME: Final = (1 << NAME_BITS) - 1
_MAX_TOKEN: Final = 2**32 - 1
_WORD: Final = 8
_BATCH: Final = ("ts", "events", "data_parallel_rank")
_STORED: Final = (
    "type",
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
)
_REMOVED: Final = ("type", "block_hashes", "medium", "group_idx")


class BadBatch(ValueError):  # noqa: N818 - reads as what it is
    """The batch cannot be read; the message states the reason."""


class Batch(NamedTuple):
    """Events published together."""

    events: tuple[KvEvent, ...]
    unknown: int
    """Number of events of an unknown kind."""


def decode(payload: bytes) -> Batch:
    """Decode one batch.

    Raises:
        BadBatch: It is too large, not MessagePack, or not a batch of KV events.
    """
    if len(payload) > MAX_BATCH_BYTES:
        raise BadBatch(f"batch of {len(payload)} bytes; at most {MAX_BATCH_BYTES} are read")
    try:
        whole = msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise BadBatch(f"not MessagePack: {str(error)[:MAX_TEXT]}") from None
    except TypeError:  # a map with an unhashable key
        raise BadBatch("a map has a key that is not text") from None
    events = _fields(whole, _BATCH, "a batch").get("events")
    if not isinstance(events, list) or len(events) > MAX_EVENTS:
        raise BadBatch(f"events must be a list of at most {MAX_EVENTS}")
    found = [event for each in events if (event := _event(each)) is not None]
    return Batch(tuple(found), len(events) - len(found))


def _fields(value: Any, names: tuple[str, ...], what: str) -> dict[Any, Any]:
    """Return a struct's fields by name, from a map or an array."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        return dict(zip(names, value, strict=False))
    raise BadBatch(f"{what} must be a map or an array")


def _event(value: Any) -> KvEvent | None:
    kind = _fields(value, ("type",), "an event").get("type")
    if kind == "BlockStored":
        return _stored(_fields(value, _STORED, "BlockStored"))
    if kind == "BlockRemoved":
        fields = _fields(value, _REMOVED, "BlockRemoved")
        return BlockRemoved(
            _names(fields.get("block_hashes")),
            _text(fields.get("medium"), "medium"),
            _number(fields.get("group_idx"), "group_idx"),
        )
    if kind == "AllBlocksCleared":
        return AllBlocksCleared()
    if isinstance(kind, str):
        return None
    raise BadBatch("an event has no kind")


def _stored(fields: dict[Any, Any]) -> BlockStored | None:
    names = _names(fields.get("block_hashes"))
    size = fields.get("block_size")
    if size is None or not _is_count(size) or not 0 < size <= MAX_BLOCK_SIZE:
        raise BadBatch(f"block_size must be 1 to {MAX_BLOCK_SIZE}")
    tokens = fields.get("token_ids")
    if not isinstance(tokens, list) or len(tokens) != len(names) * size:
        raise BadBatch("token_ids must cover all blocks")
    if tokens and isinstance(tokens[0], list):
        return None
    if not all(_is_count(token) and token <= _MAX_TOKEN for token in tokens):
        raise BadBatch("token ids must be integers from 0 to 2**32 - 1")
    parent = fields.get("parent_block_hash")
    named, salt = fields.get("lora_name"), fields.get("cache_salt")
    extra = _extra(fields.get("extra_keys"), len(names))
    if isinstance(named, dict):
        # SGLang's metadata has the place of vLLM's adapter.
        salt, named = named.get("cache_salt"), None
    if salt and names:
        # As vLLM writes it: a key of the first block of a prompt.
        first = (_text(salt, "cache_salt"),) if parent is None else ()
        extra = (first, *[()] * (len(names) - 1))
    adapter = _text(named, "lora_name")
    if adapter is None and (number := _number(fields.get("lora_id"), "lora_id")) is not None:
        adapter = str(number)
    return BlockStored(
        names=names,
        parent=None if parent is None else _name(parent),
        token_ids=tuple(tokens),
        block_size=size,
        adapter=adapter,
        extra_keys=extra,
        medium=_text(fields.get("medium"), "medium"),
        group=_number(fields.get("group_idx"), "group_idx"),
        kind=_text(fields.get("kv_cache_spec_kind"), "kv_cache_spec_kind"),
    )


def _extra(value: Any, blocks: int) -> tuple[tuple[object, ...], ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != blocks:
        raise BadBatch("extra_keys must have one entry per block")
    if not all(each is None or isinstance(each, list) for each in value):
        raise BadBatch("an entry of extra_keys must be an array")
    return tuple(tuple(each or ()) for each in value)


def _names(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise BadBatch("block_hashes must be an array")
    return tuple([_name(each) for each in value])


def _name(value: Any) -> int:
    if isinstance(value, bytes) and len(value) >= _WORD:
        return int.from_bytes(value[-_WORD:], "big") & _NAME
    if isinstance(value, int) and not isinstance(value, bool):
        return value & _NAME
    raise BadBatch("a block hash must be an integer or at least 8 bytes")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: Any, what: str) -> int | None:
    if value is None or _is_count(value):
        return value  # type: ignore[no-any-return] # just checked
    raise BadBatch(f"{what} must be a number")


def _text(value: Any, what: str) -> str | None:
    if value is None or (isinstance(value, str) and len(value) <= MAX_TEXT):
        return value
    raise BadBatch(f"{what} must be a text of at most {MAX_TEXT} characters")
