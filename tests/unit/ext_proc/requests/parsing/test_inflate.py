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
    is_supported,
)


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_whole(compress):
    """Both codings come out whole."""
    assert inflate(compress(b"hello"), complete=True, place="p") == (b"hello", True, 5)


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


def test_supported():
    """Gzip and deflate can be read, nothing else."""
    assert [is_supported(name) for name in ("gzip", "deflate", "br", "")] == [
        True,
        True,
        False,
        False,
    ]
