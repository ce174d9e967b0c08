"""The wire format scanner."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.requests.parsing.errors import BadRequest
from ext_proc.requests.parsing.protobuf import BYTES, FIXED32, FIXED64, MAX_FIELDS, Scanner


def scan(data: bytes, end: int | None = None):
    return list(Scanner(data).fields(0, len(data) if end is None else end))


def test_kinds():
    """Every wire type but groups is passed, with its content's place."""
    data = b"\x08\x96\x01" + b"\x12\x02hi" + b"\x19" + b"\0" * 8 + b"\x25" + b"\0" * 4
    fields = scan(data)
    assert [(field.number, field.kind, field.value) for field in fields] == [
        (1, 0, 150), (2, BYTES, 0), (3, FIXED64, 0), (4, FIXED32, 0),
    ]  # fmt: skip
    assert data[fields[1].start : fields[1].end] == b"hi"
    assert all(field.whole for field in fields)


def test_cut_field_is_marked():
    """Content that continues beyond the data is marked, with its declared end."""
    (field,) = scan(b"\x12\x05hi", end=7)
    assert not field.whole
    assert field.end == 7


@pytest.mark.parametrize("data", [b"\x88", b"\x08", b"\x08\x96", b"\x12", b"\x12\x80"])
def test_cut_inside_a_tag(data):
    """A field of which only the tag or length is present is not a field yet."""
    assert scan(data, end=100) == []
    with pytest.raises(BadRequest):
        scan(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x00\x01", "not a protobuf field"),
        (b"\x0c", "wire type 4"),
        (b"\x0f", "wire type 7"),
        (b"\x12\x05hi", "longer than the message"),
        (b"\x08" + b"\xff" * 10, "not a protobuf varint"),
    ],
)
def test_no_message(data, words):
    """Bytes that are not a message are refused with the position."""
    with pytest.raises(BadRequest, match=words):
        scan(data)


def test_field_bound():
    """The budget of fields is exact."""
    assert len(scan(b"\x08\x01" * MAX_FIELDS)) == MAX_FIELDS
    with pytest.raises(BadRequest, match="more than 2048 fields"):
        scan(b"\x08\x01" * (MAX_FIELDS + 1))


def test_text():
    """A text is decoded where it is whole and short, else unknown, else refused."""
    scanner = Scanner(b"\x0a\x02hi\x12\x02\xff\xff\x18\x01")
    text, broken, number = scanner.fields(0, 10)
    assert scanner.text(text, 2) == "hi"
    assert scanner.text(text, 1) is None
    with pytest.raises(BadRequest, match="UTF-8"):
        scanner.text(broken, 10)
    assert not scanner.unsure
    assert scanner.text(number, 10) is None
    assert scanner.unsure


def test_a_group_makes_unsure():
    """Nothing behind it is read here: protobuf skips it, with what is nested in it."""
    scanner = Scanner(b"\x08\x01\x13\x08\x02\x14\x08\x03")
    assert [field.value for field in scanner.fields(0, 8)] == [1]
    assert scanner.unsure


def test_varints():
    """A packed field is read up to the bound, and up to the cut."""
    scanner = Scanner(b"\x0a\x0e\x01\x02" + b"\xff" * 9 + b"\x01\x83")
    (field,) = scanner.fields(0, 16)
    assert scanner.varints(field, 2) == [1, 2]
    assert scanner.varints(field, 9) == [1, 2, -1]


@given(st.binary(), st.integers(0, 100))
def test_only_bad_request_escapes(data, beyond):
    """Random bytes are read or refused."""
    try:
        fields = scan(data, end=len(data) + beyond)
    except BadRequest:
        return
    assert all(field.start <= len(data) for field in fields)
