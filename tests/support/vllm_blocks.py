"""vLLM's block hashes, by which its KV events name blocks (its algorithm ``sha256_cbor``).

The engine that stands in for vLLM names its blocks so. Pickers need no engine's hashes: its events
carry the tokens.

Source: vLLM V1, ``vllm/v1/core/kv_cache_utils.py`` (``init_none_hash``, ``hash_block_tokens``,
``generate_block_hash_extra_keys``, ``maybe_convert_block_hash``) and ``sha256_cbor``. In its words:

* The hash of a block is SHA-256 over the canonical CBOR (RFC 8949, 4.2.1) of the array
  ``[parent, [token ids], extra keys]``; only full blocks have one.
* The parent of a first block is ``NONE_HASH``: the same function over the text of the environment
  variable ``PYTHONHASHSEED`` of the vLLM process, or chance where that is not set. So hashes can be
  computed here only for replicas that all set it.
* Extra keys are the adapter's name in every block and the cache salt in the first; ``null`` where
  there are none. (Multimodal inputs have keys of their own: such prompts are not computed here.)
* A hash is 32 bytes. KV events carry its last 64 bits as an unsigned integer while
  ``VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES`` is on, which is vLLM's default; as the next block is
  chained to all 32 bytes, a chain cannot be continued from such an integer.

vLLM's default algorithm, ``sha256``, hashes Python pickles, which differ between Python versions;
it is not computed here.
"""

from __future__ import annotations

from hashlib import sha256
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_DEPTH: Final = 8
"""Arrays in arrays that are encoded."""

_UNSIGNED: Final = 0
_NEGATIVE: Final = 1
_BYTES: Final = 2
_TEXT: Final = 3
_ARRAY: Final = 4
_NULL: Final = b"\xf6"
_DIRECT: Final = 24
_SIZES: Final = ((1, 24), (2, 25), (4, 26), (8, 27))


def none_hash(seed: str) -> bytes:
    """Return ``NONE_HASH`` of a vLLM process, the parent of first blocks.

    Args:
        seed: Its environment variable ``PYTHONHASHSEED``, as it is written there.
    """
    return sha256(canonical_cbor(seed)).digest()


def block_hash(
    parent: bytes, token_ids: Sequence[int], extra_keys: tuple[object, ...] | None = None
) -> bytes:
    """Return the 32-byte hash of one full block.

    Args:
        parent: Hash of the block before it; ``none_hash(seed)`` for the first.
        token_ids: The block's tokens.
        extra_keys: What else its content depends on; ``None`` = nothing.

    Raises:
        TypeError: A key is neither ``None``, an integer, bytes, text nor a sequence of these.
        ValueError: An integer needs more than 64 bits, or keys nest deeper than ``MAX_DEPTH``.
    """
    return sha256(canonical_cbor((parent, tuple(token_ids), extra_keys))).digest()


def event_hash(full: bytes) -> int:
    """Return a hash as KV events name it: its last 64 bits, big-endian, unsigned."""
    return int.from_bytes(full[-8:], "big")


def block_hashes(
    token_ids: Sequence[int],
    block_size: int,
    root: bytes,
    *,
    adapter: str | None = None,
    salt: str | None = None,
    limit: int = 2048,
) -> tuple[bytes, ...]:
    """Return the hashes of a prompt's full blocks, first block first.

    Args:
        token_ids: The whole prompt as the engine sees it, special tokens included.
        block_size: The engine's tokens per block, at least 1.
        root: ``none_hash`` of the engine's seed.
        adapter: Name of the LoRA adapter.
        salt: The request's ``cache_salt``.
        limit: Most hashes returned.

    Raises:
        ValueError: A token id needs more than 64 bits.
    """
    always = (adapter,) if adapter else ()
    first = (*always, salt) if salt else always
    count = min(len(token_ids) // block_size, limit)
    pieces = (token_ids[at * block_size : (at + 1) * block_size] for at in range(count))
    extras = (first if at == 0 else always for at in range(count))
    blocks = zip(pieces, extras, strict=True)
    chain = accumulate(
        blocks, lambda parent, block: block_hash(parent, block[0], block[1] or None), initial=root
    )
    return tuple(chain)[1:]


def canonical_cbor(value: object, depth: int = 0) -> bytes:
    """Encode ``None``, integers, bytes, texts and sequences of these, each in its shortest form.

    Raises:
        TypeError: ``value`` holds something else.
        ValueError: An integer needs more than 64 bits, or sequences are nested too deep.
    """
    if value is None:
        return _NULL
    if isinstance(value, int) and not isinstance(value, bool):
        return _head(_UNSIGNED, value) if value >= 0 else _head(_NEGATIVE, -1 - value)
    if isinstance(value, bytes):
        return _head(_BYTES, len(value)) + value
    if isinstance(value, str):
        text = value.encode()
        return _head(_TEXT, len(text)) + text
    if isinstance(value, tuple | list):
        if depth >= MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        return _head(_ARRAY, len(value)) + b"".join(
            canonical_cbor(item, depth + 1) for item in value
        )
    raise TypeError(f"cannot encode {type(value).__name__}")


def _head(major: int, argument: int) -> bytes:
    """Return an item's first bytes: its major type and its argument (RFC 8949, 3)."""
    if argument < _DIRECT:
        return bytes((major << 5 | argument,))
    for size, code in _SIZES:
        if argument < 1 << (8 * size):
            return bytes((major << 5 | code,)) + argument.to_bytes(size, "big")
    raise ValueError("an integer needs more than 64 bits")
