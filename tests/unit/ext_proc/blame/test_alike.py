"""Near copies of bodies: which are alike, and what is kept for that."""

from __future__ import annotations

import gzip
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.blame import alike as module
from ext_proc.blame.alike import BYTES_PER_EDIT, MAX_EDITS, Alike, allowance, plain, within

POOL = "llm"
LETTERS = st.lists(st.sampled_from(b"abc"), max_size=14).map(bytes)


def name(number: int) -> bytes:
    return number.to_bytes(16, "big")


def distance(one: bytes, other: bytes) -> int:
    """Return the edit distance, by the table."""
    before = list(range(len(other) + 1))
    for row, mine in enumerate(one, 1):
        now = [row]
        for column, yours in enumerate(other, 1):
            best = min(before[column], now[-1]) + 1
            now.append(min(best, before[column - 1] + (mine != yours)))
        before = now
    return before[-1]


def edited(body: bytes, rng: random.Random, edits: int) -> bytes:
    """Return a body with so many bytes changed, inserted or removed."""
    made = bytearray(body)
    for _ in range(edits):
        at, what = rng.randrange(len(made)), rng.randrange(3)
        if what == 0:
            made[at] ^= rng.randrange(1, 256)
        elif what == 1:
            made.insert(at, rng.randrange(256))
        else:
            del made[at]
    return bytes(made)


@given(LETTERS, LETTERS, st.integers(0, 6))
def test_within_is_the_edit_distance(one: bytes, other: bytes, most: int):
    """The table of all prefixes says the same, in more time."""
    assert within(one, other, most) is (distance(one, other) <= most)


@given(
    st.sampled_from([40, 127, 500, 3_000, 70_000]),
    st.booleans(),
    st.integers(0, 2**32),
    st.integers(0, MAX_EDITS),
)
def test_a_near_copy_is_always_found(size: int, zeros: bool, seed: int, edits: int):
    """Wherever the bytes are, also in bodies that repeat themselves."""
    rng = random.Random(seed)
    body = bytes(size) if zeros else rng.randbytes(size)
    kept = Alike()
    assert kept.keep(name(1), POOL, body) == (name(1),)
    other = edited(body, rng, min(edits, allowance(size)))
    assert kept.kinds(POOL, other) == (name(1),)
    assert not kept.kinds("other", other)


@pytest.mark.parametrize(("size", "most"), [(2, 1), (16, 1), (48, 3), (128, 8), (100_000, 8)])
def test_the_allowance_grows_with_the_body(size: int, most: int):
    """One byte is always allowed, and never more than eight."""
    assert allowance(size) == most


def test_another_question_after_the_same_prompt_is_not_alike():
    """A long common beginning makes no near copy."""
    prompt, kept = b"You are a helpful assistant. " * 200, Alike()
    kept.keep(name(1), POOL, prompt + b"Where is the station?")
    assert not kept.kinds(POOL, prompt + b"What is a good dinner?")
    assert kept.kinds(POOL, prompt + b"Where is the stallion?")


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_compressed_bodies_are_compared_as_they_read(pack):
    """A changed byte changes all that follows it in a compressed body."""
    rng = random.Random(1)
    body = b'{"text_input":"%s"}' % rng.randbytes(400).hex().encode()
    kept = Alike()
    kept.keep(name(1), POOL, pack(body))
    assert kept.kinds(POOL, pack(edited(body, rng, 3)))
    assert kept.kinds(POOL, edited(body, rng, 3))
    assert not kept.kinds(POOL, pack(rng.randbytes(len(body))))


def test_what_only_looks_compressed_is_taken_as_it_is():
    """Two bytes make no stream, and a stream may be a bomb."""
    assert plain(b"\x1f\x8bno stream") == b"\x1f\x8bno stream"
    assert len(plain(gzip.compress(bytes(10 * module.MAX_BYTES)))) == module.MAX_BYTES + 1


def test_variants_of_variants_are_of_the_first_kind():
    """A client that changes a few bytes each time stays known."""
    rng, kept = random.Random(2), Alike()
    body = rng.randbytes(300)
    for number in range(1, 20):
        assert kept.keep(name(number), POOL, body) == (name(1),)
        body = edited(body, rng, MAX_EDITS)
    assert kept.kinds(POOL, body) == (name(1),)


def test_kinds_that_peers_found_are_taken_over():
    """Two workers may learn of two near copies in another order."""
    kept = Alike()
    assert kept.keep(name(2), POOL, b"a body", (name(1),)) == (name(1),)
    assert kept.keep(name(2), POOL, b"a body", (name(3),)) == (name(1), name(3))
    many = tuple(name(number) for number in range(50))
    assert len(kept.keep(name(2), POOL, b"a body", many)) == module.MAX_KINDS


def test_bodies_are_bounded_by_number_and_bytes(monkeypatch):
    """Those that died again are the last to go."""
    monkeypatch.setattr(module, "MAX_BODIES", 4)
    kept = Alike()
    for number in range(4):
        kept.keep(name(number), POOL, b"%d" % number * 100)
    kept.keep(name(0), POOL, b"0" * 100)
    kept.keep(name(4), POOL, b"4" * 100)
    assert [each[0] for each in kept.kept()] == [name(0), name(2), name(3), name(4)]
    monkeypatch.setattr(kept, "_left", 50)
    kept.keep(name(5), POOL, b"5" * 120)
    assert [each[0] for each in kept.kept()] == [name(0), name(3), name(4), name(5)]
    assert kept.keep(name(6), POOL, bytes(module.MAX_BYTES + 1)) == (name(6),)
    assert len(kept) == 4


def test_a_look_up_compares_with_few_bodies(monkeypatch):
    """What an attacker lets die with the killer must not make decisions slow."""
    calls = []
    monkeypatch.setattr(module, "within", lambda *_: calls.append(1))
    beginning, kept = random.Random(3).randbytes(2_000), Alike()
    for number in range(100):
        kept.keep(name(number), POOL, beginning + number.to_bytes(2, "big") * 20)
    calls.clear()
    kept.kinds(POOL, beginning + b"x" * 40)
    assert len(calls) == module.MAX_COMPARED
    calls.clear()
    kept.kinds(POOL, random.Random(4).randbytes(2_040))
    assert not calls


def test_forgetting_gives_back_what_was_kept():
    """A cleared suspect is compared with nothing."""
    kept = Alike()
    kept.keep(name(1), POOL, b"a body")
    kept.forget(name(1))
    kept.forget(name(2))
    assert not len(kept)
    assert not kept.kinds(POOL, b"a body")
    assert kept._left == module.TOTAL_BYTES
    assert BYTES_PER_EDIT * MAX_EDITS == 128
