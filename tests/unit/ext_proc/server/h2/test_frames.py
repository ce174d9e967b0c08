"""Messages extracted from bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.server.h2.frames import CompressedError, Deframer, TooLargeError, framed, timeout_s

LIMIT = 300


def pieces(data, cuts):
    """Split bytes at these places."""
    at = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


MESSAGES = st.lists(st.binary(max_size=LIMIT), max_size=8)
CUTS = st.lists(st.integers(0, 10_000), max_size=12)


@given(MESSAGES, CUTS)
def test_any_cut_gives_the_same_messages(messages, cuts):
    """However bytes are split, the messages equal those that were sent, in order."""
    deframer = Deframer(LIMIT)
    found = []
    for piece in pieces(b"".join(map(framed, messages)), cuts):
        found += deframer.feed(piece)
    assert found == messages
    assert deframer.waiting == 0


@given(MESSAGES, CUTS, st.binary(max_size=4))
def test_each_byte_is_counted_once(messages, cuts, rest):
    """Messages with their prefixes and the waiting rest add up to all received bytes."""
    deframer = Deframer(LIMIT)
    rest = rest[:1] and b"\0" + rest[1:]  # the beginning of a prefix
    came = took = 0
    for piece in pieces(b"".join(map(framed, messages)) + rest, cuts):
        came += len(piece)
        took += sum(5 + len(message) for message in deframer.feed(piece))
        assert came - took == deframer.waiting
    assert deframer.waiting == len(rest)


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_message_above_the_limit(cut):
    """The prefix suffices to refuse it, and one at the limit is accepted."""
    at_most = framed(bytes(LIMIT))
    deframer = Deframer(LIMIT)
    deframer.feed(at_most[:cut])
    assert deframer.feed(at_most[cut:]) == [bytes(LIMIT)]
    above = framed(bytes(LIMIT + 1))[:5]
    with pytest.raises(TooLargeError, match="301 bytes exceeds the limit of 300"):
        deframer.feed(above)


def test_a_compressed_message():
    """It is refused as soon as its prefix is read, also after complete messages."""
    with pytest.raises(CompressedError, match="send them uncompressed"):
        Deframer(LIMIT).feed(framed(b"whole") + b"\1\0\0\0\1x")


@given(st.binary(max_size=200), CUTS)
def test_any_bytes(data, cuts):
    """Bytes that are not messages are refused, or wait within the limit."""
    deframer = Deframer(LIMIT)
    try:
        for piece in pieces(data, cuts):
            assert all(len(message) <= LIMIT for message in deframer.feed(piece))
            assert deframer.waiting <= LIMIT + 5
    except (CompressedError, TooLargeError):
        pass


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(b"1S", 1.0), (b"250m", 0.25), (b"2H", 7200.0), (b"3M", 180.0), (b"5u", 5e-6), (b"7n", 7e-9)],
)
def test_a_deadline_is_read(text, seconds):
    """GRPC's units."""
    assert timeout_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", [b"", b"S", b"1", b"-1S", b"1.5S", b"123456789S", b"1s", b" 1S"])
def test_a_malformed_deadline_is_none(text):
    """Digits above eight and unknown units are not guessed."""
    assert timeout_s(text) is None


@given(st.binary(max_size=12))
def test_any_deadline_is_a_time_or_malformed(text):
    """No header raises, and no time is negative or unbounded."""
    found = timeout_s(text)
    assert found is None or 0 <= found < 4e11
