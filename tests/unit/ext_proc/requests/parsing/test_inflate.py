"""Bounded decompression."""

from __future__ import annotations

import gzip
import zlib

import pytest

from ext_proc.requests.parsing.errors import BadRequest
from ext_proc.requests.parsing.inflate import MAX_INFLATED, inflate, is_supported


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_whole(compress):
    """Both codings come out whole."""
    assert inflate(compress(b"hello"), complete=True, place="p") == (b"hello", True)


def test_first_part():
    """A first part yields the content that is present."""
    packed = gzip.compress(bytes(range(256)) * 100)
    content, whole = inflate(memoryview(packed)[:-20], complete=False, place="p")
    assert (bytes(range(256)) * 100).startswith(content)
    assert not whole


def test_bomb():
    """The output never exceeds the bound."""
    content, whole = inflate(gzip.compress(bytes(64 * 2**20)), complete=True, place="p")
    assert len(content) == MAX_INFLATED
    assert not whole


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
