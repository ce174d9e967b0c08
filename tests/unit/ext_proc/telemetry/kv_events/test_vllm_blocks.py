"""vLLM's block hashes. The vectors were computed from their definition with cbor2 and hashlib."""

from __future__ import annotations

import hashlib

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.vllm_blocks import (
    MAX_DEPTH,
    block_hash,
    block_hashes,
    canonical_cbor,
    event_hash,
    none_hash,
)

ROOT = "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e"
PLAIN = (
    "d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c",
    "fedd9e4abebebbe6f6cf96b682f08d316063fe2f22a5c552192dd62904fcccac",
)
KEYED = (
    "abd6f50d6d9affefb84fb381109ac129a4b782a6be7f874a9cdb173ce0620a8e",
    "d71e7aae50bf3ea74ca00c364112b1bcf2b2ed57e4a653d4e09a210f43eb206a",
)
ITEMS = st.recursive(
    st.none() | st.integers(-(2**64), 2**64 - 1) | st.binary(max_size=300) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=30),
    max_leaves=60,
)


def test_none_hash():
    """The root is the hash of the seed's text."""
    assert none_hash("0").hex() == ROOT


def test_chain():
    """Full blocks are chained to the root; a rest has no hash."""
    found = block_hashes(range(40), 16, none_hash("0"))
    assert tuple(each.hex() for each in found) == PLAIN


def test_extra_keys():
    """The adapter is in every block, the salt in the first one only."""
    found = block_hashes((1, 2, 70000, -1), 2, none_hash("0"), adapter="lora", salt="s")
    assert tuple(each.hex() for each in found) == KEYED


def test_block_continues_a_chain():
    """One block behind a known hash is the chain's next."""
    assert block_hash(bytes.fromhex(PLAIN[0]), tuple(range(16, 32))).hex() == PLAIN[1]


def test_event_hash():
    """Events name a block by the last 64 bits of its hash."""
    assert event_hash(bytes.fromhex(PLAIN[1])) == 1814341696565857452


def test_limit():
    """No more than ``limit`` hashes are made."""
    assert len(block_hashes(range(100), 1, b"", limit=7)) == 7


@given(st.lists(st.integers(0, 2**32 - 1), max_size=80), st.integers(1, 9))
def test_definition(ids, size):
    """The chain is what the definition says, computed with cbor2."""
    parent, expected = none_hash("seed"), []
    for at in range(0, len(ids) - size + 1, size):
        item = (parent, tuple(ids[at : at + size]), None)
        parent = hashlib.sha256(cbor2.dumps(item, canonical=True)).digest()
        expected.append(parent)
    assert list(block_hashes(ids, size, none_hash("seed"))) == expected


@given(ITEMS)
def test_cbor(value):
    """Values are encoded as cbor2 encodes them canonically."""
    assert canonical_cbor(value) == cbor2.dumps(value, canonical=True)


@pytest.mark.parametrize("value", [1.0, True, {}, {1}, object()])
def test_other_types(value):
    """A type without an encoding here is refused by name."""
    with pytest.raises(TypeError, match=f"cannot encode {type(value).__name__}"):
        canonical_cbor((value,))


@pytest.mark.parametrize("value", [2**64, -(2**64) - 1])
def test_integers_are_bounded(value):
    """Integers beyond 64 bits are refused."""
    with pytest.raises(ValueError, match="64 bits"):
        canonical_cbor(value)


@pytest.mark.parametrize(("depth", "fits"), [(MAX_DEPTH, True), (MAX_DEPTH + 1, False)])
def test_depth_is_bounded(depth, fits):
    """Arrays may nest ``MAX_DEPTH`` deep, not deeper."""
    value: object = None
    for _ in range(depth):
        value = [value]
    if fits:
        assert canonical_cbor(value)
    else:
        with pytest.raises(ValueError, match="nested"):
            canonical_cbor(value)
