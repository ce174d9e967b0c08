"""JSON as the replicas' own parsers read it."""

from __future__ import annotations

import json
import math
import sys
from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.requests.parsing import replica_json
from ext_proc.requests.parsing.budget import MAX_ESCAPES
from ext_proc.requests.parsing.errors import BadRequest, Malformed, UnsoundRequest
from ext_proc.requests.parsing.json_prefix import Rules, read_object
from ext_proc.requests.parsing.replica_json import MAX_DEPTH, fits, parse_as_triton
from support.tries import tries

DOCUMENT = b'{"a": [1], "b": 2}'
MEMBERS = {"a": [1], "b": 2}


def triton(body: bytes, *, complete: bool = True):
    return read_object(body, complete=complete, place="the body", rules=Rules.TRITON)


AROUND = {
    "byte-order mark": b"\xef\xbb\xbf" + DOCUMENT,
    "first byte of it": b"\xef" + DOCUMENT,
    "second byte of it": b"\xbb" + DOCUMENT,
    "two bytes of it": b"\xef\xbf" + DOCUMENT,
    "zero byte": DOCUMENT + b"\0",
    "zero byte and more": DOCUMENT + b"\0{",
    "zero byte and much": DOCUMENT + b" \n\0" + b"x" * 200_000,
    "white space": b" " * 100_000 + DOCUMENT,
}


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("complete", [True, False])
def test_what_stands_around_a_document(name, complete):
    """A byte-order mark or a part of it, white space, and all behind a zero byte."""
    document = triton(AROUND[name], complete=complete)
    assert (document.members, document.whole) == (MEMBERS, True)


@pytest.mark.parametrize(
    "word", ["NaN", "-NaN", "Inf", "-Infinity", "1.7976931348623157e308", "1e-999"]
)
def test_numbers_of_rapidjson(word):
    """None is an integer, whatever it is."""
    for number in (word, word + " "):
        (value,) = triton(b'{"a": [%s], "x": "NaN"}' % number.encode()).members["a"]
        assert type(value) is float


@pytest.mark.parametrize(
    "value",
    [
        "nan",
        "1e309",
        "1.8e308",
        "NaN.5",
        "01",
        "1.",
        "+1",
        "InfinityX",
        "/**/1",
        '"\t"',
        '"\\x"',
        '"\\ud800"',
        "[1,]",
        "",
    ],
)
def test_what_rapidjson_rejects(value):
    """So is the body: nothing else can be said of it."""
    with pytest.raises(Malformed, match="not valid JSON"):
        triton(b'{"a": %s}' % value.encode())


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (b"\xff", "\ufffd"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"\\udc80 \\\\udc80", "\ufffd \\udc80"),
        (b"\\ud83d\\ude00\\ude00", "\U0001f600\ufffd"),
        (b"\\u0000", "\0"),
        (b"\xc3\xa9\xff\\u00e9", "é\ufffdé"),
    ],
)
def test_texts_that_are_no_unicode(text, read):
    """Triton does not look at it; what is read is the same where it matters."""
    assert triton(b'{"a": NaN, "t": "%s", "i": 1}' % text).members["t"] == read


@pytest.mark.parametrize("complete", [True, False])
def test_few_escapes_are_repaired(complete):
    """Of more the reading is not worth its price: Triton takes them, so they are refused."""
    escaped = b'{"a": NaN, "t": "%s\\udc80"}'
    most = triton(escaped % (b"\\n" * (MAX_ESCAPES - 1)), complete=complete)
    assert most.members["t"] == "\n" * (MAX_ESCAPES - 1) + "\ufffd"
    with pytest.raises(UnsoundRequest, match="too many escapes"):
        triton(escaped % (b"\\n" * MAX_ESCAPES), complete=complete)


def test_many_escapes_are_read_where_nothing_is_to_be_repaired():
    """A client in Python escapes all that is not ASCII, emoji with both their halves."""
    document = triton(b'{"a": NaN, "t": "%s"}' % (b"\\ud83d\\ude00" * MAX_ESCAPES))
    assert document.members["t"] == "\U0001f600" * MAX_ESCAPES


def test_the_first_of_a_key_counts():
    """Also where JSON escapes hide that it is the same, or where others have colons."""
    assert triton(b'{"a": 1, "\\u0061": 2, ":": {"b": 1, "b": 2}}').members == {
        "a": 1,
        ":": {"b": 1},
    }
    assert triton(b'{"x\\\\": 1, "a": 1, "a": 2}').members["a"] == 1
    assert triton(b'{"t": ["a:b"], "l": [[{"a": 1, "a": 2}]]}').members["l"] == [[{"a": 1}]]
    closed = triton(b'{"a": 1, "a": 2, "p": "x', complete=False)
    assert closed.members == {"a": 1, "p": "x"}


def test_of_python_the_last_of_a_key_counts():
    """Engines in Python take NaN and single surrogates too, but no zero byte."""
    read = read_object(b'\xef\xbb\xbf{"a": NaN, "a": "\\ud800"}', complete=True, place="p")
    assert read.members == {"a": "\ufffd"}
    for body in (DOCUMENT + b"\0", b"\xef" + DOCUMENT, b'{"a": "\xff"}', b'{"a": Inf}'):
        with pytest.raises(Malformed):
            read_object(body, complete=True, place="p")
    with pytest.raises(UnsoundRequest, match="deeper"):
        read_object(b'{"a": [NaN, ' + b"[" * 1200 + b"]" * 1200 + b"]}", complete=True, place="p")


def test_the_depth_does_not_depend_on_the_python():
    """From Python 3.12 on, its parser reads deeper than its limit of recursion."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10 * limit)
    try:
        for more, rest in ((0, b""), (0, b', "b": "[["'), (1, b""), (1, b', "b": {"c": []}')):
            levels = MAX_DEPTH - 2 + more
            body = b'{"a": [NaN, ' + b"[" * levels + b"]" * levels + b"]" + rest + b"}"
            with pytest.raises(UnsoundRequest, match="deeper") if more else nullcontext():
                read_object(body, complete=True, place="p")
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize("head", [b'{"a": NaN, "b": ', b"", b'{"a": "\xff", "b": '])
@pytest.mark.parametrize("complete", [True, False])
def test_depth_is_found_behind_anything(head, complete):
    """A server dies of depth, whatever else the document is."""
    with pytest.raises(UnsoundRequest, match="deeper"):
        triton(head + b"[" * 20_000, complete=complete)


def test_a_document_beyond_the_bound_is_read_in_part():
    """It is not known whole, and not refused."""
    many = b'{"id": "x", "a": [NaN' + b",1" * 50_000 + b"]}"
    document = triton(many)
    assert not document.whole
    assert document.members["id"] == "x"
    long = b'{"id": "x", "a": NaN, "b": "' + b"x" * 200_000 + b'"}'
    document = triton(long)
    assert not document.whole
    assert document.members["id"] == "x"


def test_a_first_part_is_unreadable_only_for_certain():
    """What is behind the part may complete it, unless the mistake is before its last comma."""
    for body in (b'{"a": tru', b'{"a": "\\u00', b'{"a": -', b'{"a": NaN, "b": 1e'):
        assert not triton(body, complete=False).whole
    for body in (b'{"a": nan, "b": "' + b"x" * 50, b'{"a": 1} "' + b"x" * 50):
        with pytest.raises(BadRequest):
            triton(body, complete=False)


@pytest.mark.parametrize(
    "value",
    [
        b"NaN",
        b"-Inf",
        b'"\xff\\""',
        b'"\\udc00\\ud83d\\ude00"',
        b'{"a":1,"a":[2]}',
    ],
)
def test_every_first_part_of_what_triton_takes_is_read(value):
    """A cut makes no error: it is closed behind what is complete."""
    whole = b'\xef\xbb{"a": [%s, {"b": %s}, "x"], "c": [[%s],[]], "p": "x"}' % (value, value, value)
    members = triton(whole).members
    for end in range(2, len(whole)):
        document = triton(whole[:end], complete=False)
        assert set(document.members) <= set(members)
    assert "a" in triton(whole[:-5], complete=False).members


@pytest.mark.parametrize("rules", Rules)
def test_a_first_part_of_white_space_is_refused(rules):
    """What comes behind it would not be read."""
    blank = b" " * 4096
    assert not read_object(blank, complete=False, place="p", rules=rules).whole
    with pytest.raises(Malformed, match="white space"):
        read_object(blank + b" ", complete=False, place="p", rules=rules)
    assert read_object(blank + b" {}", complete=True, place="p", rules=rules).whole


def test_bounds(monkeypatch):
    """The bytes and the units are exact."""
    monkeypatch.setattr(replica_json, "MAX_SECOND_BYTES", 10)
    assert fits(b"x" * 10)
    assert not fits(b"x" * 11)
    monkeypatch.setattr(replica_json, "MAX_SECOND_UNITS", 5)
    assert fits(b"[{")
    assert not fits(b"[[{")
    assert fits(b"[:,,,")
    assert not fits(b"[:,,,,")


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text('abé:"\\', max_size=3), inner, max_size=4),
    ),
    max_leaves=20,
)


def equal(one: object, other: object) -> bool:
    """Compare, with numbers as RapidJSON's normal precision has them."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-300)
    return type(one) is type(other) and one == other


@settings(max_examples=tries(60), deadline=None)
@given(value=st.dictionaries(st.text(max_size=3), VALUES, max_size=4), ascii_=st.booleans())
def test_both_parsers_read_valid_documents_alike(value, ascii_):
    """Only what is unusual needs the second one."""
    text = json.dumps(value, ensure_ascii=ascii_).encode()
    if b"Infinity" not in text:
        assert equal(triton(text).members, parse_as_triton(text, "p"))


@settings(max_examples=tries(150), deadline=None)
@given(data=st.data())
def test_every_reading_is_one_of_three(data):
    """Of any bytes near JSON: a document, an error of ours, or a part of a document."""
    pieces = [
        b"{",
        b"}",
        b"[",
        b"]",
        b'"a"',
        b'"\\u0061"',
        b":",
        b",",
        b"1",
        b"NaN",
        b"\xff",
        b"\0",
    ]
    body = b'{"a":' + b"".join(data.draw(st.lists(st.sampled_from(pieces), max_size=12)))
    for complete in (True, False):
        try:
            document = triton(body, complete=complete)
        except BadRequest:
            continue
        assert isinstance(document.members, dict)
        assert document.whole or not complete
