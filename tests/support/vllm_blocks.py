"""vLLM's block hashes, which name blocks in its KV events (algorithm ``sha256_cbor``).

``kv_engine`` names its blocks with them. The picker does not compute engine hashes, because the
events contain the tokens.

Source: vLLM V1, ``vllm/v1/core/kv_cache_utils.py`` (``init_none_hash``, ``hash_block_tokens``,
``generate_block_hash_extra_keys``, ``maybe_convert_block_hash``) and ``sha256_cbor``:

* The hash of a block is SHA-256 over the canonical CBOR (RFC 8949, 4.2.1) of the array
  ``[parent, [token ids], extra keys]``; only full blocks have one.
* The parent of a first block is ``NONE_HASH``: the same function over the text of the environment
  variable ``PYTHONHASHSEED`` of the vLLM process, or random if that is not set. Hashes can
  therefore be computed here only for replicas that set it.
* Extra keys are the adapter's name in every block and the cache salt in the first; ``null`` without
  any. (Multimodal inputs add further keys; such prompts are not supported here.)
* A hash is 32 bytes. KV events carry its last 64 bits as an unsigned integer while
  ``VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES`` is on, which is vLLM's default. A chain cannot be
  continued from such an integer, because the next block is chained to all 32 bytes.

vLLM's default algorithm, ``sha256``, hashes Python pickles, which differ between Python versions;
it is not supported here.
"""

from __future__ import annotations

from hashlib import sha256
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_DEPTH: Final = 8
"""Maximum nesting depth of encoded arrays."""

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
        seed: Value of its environment variable ``PYTHONHASHSEED``.
    """
    return sha256(canonical_cbor(seed)).digest()


def block_hash(
    parent: bytes, token_ids: Sequence[int], extra_keys: tuple[object, ...] | None = None
) -> bytes:
    """Return the 32-byte hash of one full block.

    Args:
        parent: Hash of the previous block; ``none_hash(seed)`` for the first.
        token_ids: Tokens of the block.
        extra_keys: Other inputs of its content; ``None``: none.

    Raises:
        TypeError: A key is neither ``None``, an integer, bytes, text nor a sequence of these.
        ValueError: An integer needs more than 64 bits, or keys nest deeper than ``MAX_DEPTH``.
    """
    return sha256(canonical_cbor((parent, tuple(token_ids), extra_keys))).digest()


def event_hash(full: bytes) -> int:
    """Return a hash as in KV events: its last 64 bits, big-endian, unsigned."""
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
        token_ids: The engine's tokens of the whole prompt, special tokens included.
        block_size: Tokens per block of the engine, at least 1.
        root: ``none_hash`` of the engine's seed.
        adapter: Name of the LoRA adapter.
        salt: The request's ``cache_salt``.
        limit: Maximum number of hashes.

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
