"""Bounded decompression."""

from __future__ import annotations

import gzip
import os
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.requests.parsing.errors import BadRequest
from ext_proc.requests.parsing.inflate import (
    MAX_COMPRESSED,
    MAX_INFLATED,
    MAX_RATIO,
    UNKNOWN,
    inflate,
)


def test_first_part():
    """A first part yields the content that is present."""
    packed = gzip.compress(bytes(range(256)) * 100)
    content, whole, most = inflate(memoryview(packed)[:-20], complete=False, place="p")
    assert (bytes(range(256)) * 100).startswith(content)
    assert not whole
    assert most == UNKNOWN
    known = inflate(packed[:-20], complete=False, place="p", announced=len(packed))
    assert known.most == len(content) + 20 * MAX_RATIO


def test_bomb():
    """The output never exceeds the bound."""
    packed = gzip.compress(bytes(64 * 2**20))
    content, whole, most = inflate(packed, complete=True, place="p")
    assert len(content) == MAX_INFLATED
    assert not whole
    assert 64 * 2**20 <= most <= len(packed) * MAX_RATIO + MAX_INFLATED


def test_a_bomb_behind_an_honest_beginning():
    """What was not read may be a bomb, and so may a second member of gzip."""
    bomb = gzip.compress(bytes(64 * 2**20))
    honest = gzip.compress(os.urandom(MAX_COMPRESSED), 0)
    assert inflate(honest + bomb, complete=True, place="p").most >= 64 * 2**20
    assert inflate(gzip.compress(b"{}") + bomb, complete=True, place="p").most >= 64 * 2**20


@given(st.binary(max_size=300), st.integers(1, 3000), st.integers(0, 9))
def test_the_bound_holds_whatever_was_read(piece, times, level):
    """The whole content never has more bytes than were said, wherever the data is cut."""
    content = piece * times
    packed = zlib.compress(content, level)
    for end in {len(packed) * part // 4 for part in range(1, 5)}:
        found = inflate(packed[:end], complete=end == len(packed), place="p", announced=len(packed))
        assert len(content) <= found.most


@pytest.mark.parametrize(
    "body",
    [b"", b"hello", gzip.compress(b"hello" * 99)[:-9]],
    ids=["empty", "plain", "cut"],
)
def test_damage(body):
    """Data that is not complete compressed data is refused."""
    with pytest.raises(BadRequest, match="the body"):
        inflate(body, complete=True, place="the body")


DOCUMENT = b'{"inputs": []}' * 200


def flushed() -> bytes:
    """Return compressed data that goes on."""
    packer = zlib.compressobj(wbits=31)
    return packer.compress(DOCUMENT) + packer.flush(zlib.Z_FULL_FLUSH)


PACKED = gzip.compress(DOCUMENT, mtime=0)
OVERLOOKED = {
    "gzip": PACKED,
    "zlib": zlib.compress(DOCUMENT),
    "early end": PACKED[:-1],
    "wrong checksum": PACKED[:-8] + b"12345678",
    "other data": PACKED + b"other data",
    "another member": PACKED + gzip.compress(b"other data", mtime=0),
    "no end": flushed(),
    "damage": flushed() + b"\xff" * 9,
}


@pytest.mark.parametrize("name", OVERLOOKED)
def test_what_triton_overlooks(name):
    """Its content is all that was decompressed before, as tried on Triton 2.51."""
    made = inflate(OVERLOOKED[name], complete=True, place=None)
    assert (made.content, made.whole) == (DOCUMENT, True)


def test_what_has_no_content():
    """Triton takes it for an empty body: other data, a dictionary of zlib, bare DEFLATE."""
    for body in (b"neither", b"\x78\xbb\0\0\0\0", zlib.compress(DOCUMENT)[2:]):
        made = inflate(body, complete=True, place=None)
        assert (made.content, made.whole) == (b"", True)


def test_damage_beyond_the_bound_is_not_found():
    """What Triton has read of it is not known."""
    body = zlib.compress(bytes(range(256)) * 100, level=0)
    for broken in (body[:-4] + b"1234", body[:20_000] + b"\xff" * 20_000):
        made = inflate(broken, complete=True, place=None)
        assert not made.whole
    assert not inflate(gzip.compress(DOCUMENT)[:20], complete=False, place=None).whole
