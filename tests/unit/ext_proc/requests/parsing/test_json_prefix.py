"""Whole and cut JSON objects."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.requests.parsing import budget, json_prefix
from ext_proc.requests.parsing.cut_text import CutText
from ext_proc.requests.parsing.errors import BadRequest, UnsoundRequest
from ext_proc.requests.parsing.json_prefix import MAX_DEPTH, Rules, read_object

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def cut(text: str | bytes):
    data = text.encode() if isinstance(text, str) else text
    return read_object(data, complete=False, place="the body")


def is_part(part, full) -> bool:
    """Return whether ``part`` may result from a prefix of ``full``."""
    if isinstance(part, CutText):
        return isinstance(full, str) and full.startswith(part)
    if isinstance(part, dict):
        return isinstance(full, dict) and all(
            key in full and is_part(value, full[key]) for key, value in part.items()
        )
    if isinstance(part, list):
        return isinstance(full, list) and all(map(is_part, part, full)) and len(part) <= len(full)
    return part == full


def test_whole():
    """A whole object equals orjson's result, and is marked whole."""
    document = read_object(b'{"a": [1]}', complete=True, place="the body")
    assert document.members == {"a": [1]}
    assert document.whole
    assert not document.is_cut("a")
    assert cut('{"a": 1} ').whole  # although only the first part was asked for


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("  ", {}),
        ("{", {}),
        ('{"a', {}),
        ('{"a"', {}),
        ('{"a":', {}),
        ('{"a": 12', {}),
        ('{"a": 12,', {"a": 12}),
        ('{"a": "x', {"a": "x"}),
        ('{"a": "x", "b": {"c": [1, 2', {"a": "x", "b": {"c": [1]}}),
        ('{"a": ["x", "y', {"a": ["x", "y"]}),
        ('{"a": [["x"], tru', {"a": [["x"]]}),
        ('{"a": "x\\', {"a": "x"}),
        ('{"a": "x\\\\', {"a": "x\\"}),
        ('{"a": "x\\u00e', {"a": "x"}),
        ('{"a": "x\\ud83d', {"a": "x"}),
        ('{"a": "x\\ud83d\\ude0', {"a": "x"}),
        ('{"a": "x\\\\ud83d', {"a": "x\\ud83d"}),
    ],
)
def test_cut(text, expected):
    """Complete members stay, a cut text stays, a cut number or key is dropped."""
    assert cut(text).members == expected


def test_cut_inside_a_character():
    """A character with missing bytes is dropped."""
    data = '{"a": "xé😀'.encode()
    assert [cut(data[: len(data) - back]).members["a"] for back in range(7)] == [
        "xé😀", "xé", "xé", "xé", "xé", "x", "x",
    ]  # fmt: skip


def test_cut_text_is_marked():
    """Only the text that is cut is marked, and its key is the last one."""
    document = cut('{"a": "x", "b": {"c": ["y", "z')
    assert not isinstance(document.members["a"], CutText)
    first, second = document.members["b"]["c"]
    assert (isinstance(first, CutText), isinstance(second, CutText)) == (False, True)
    assert document.is_cut("b")
    assert not document.is_cut("a")


@pytest.mark.parametrize("text", ["x", "[1, 2", "tru", '"a', "1", "}", ", {", '{"a": [}'])
def test_no_object(text):
    """Text that cannot become an object is refused even when cut."""
    with pytest.raises(BadRequest, match="the body"):
        cut(text)


@pytest.mark.parametrize("text", [b"", b" ", b"[]", b"{", b'{"a": nan}', b'{"a": "\xff"}'])
def test_whole_but_invalid(text):
    """A whole body must be a valid JSON object."""
    with pytest.raises(BadRequest, match="the body"):
        read_object(text, complete=True, place="the body")


def test_depth_bound():
    """Nesting is refused exactly beyond the bound."""
    inner = MAX_DEPTH - 1
    assert cut('{"a":' + "[" * inner).members["a"] is not None
    with pytest.raises(BadRequest, match="deeper than 100"):
        cut('{"a":' + "[" * (inner + 1))


def test_size_bound(monkeypatch):
    """Whole JSON beyond the bound is read as a first part."""
    monkeypatch.setattr(json_prefix, "FREE_BYTES", 20)
    monkeypatch.setattr(json_prefix, "MAX_JSON_BYTES", 30)
    monkeypatch.setattr(json_prefix, "MAX_CUT_BYTES", 20)
    document = read_object(b'{"a": 1, "b": "' + b"x" * 20 + b'"}', complete=True, place="p")
    assert document.members == {"a": 1, "b": "x" * 5}
    assert not document.whole


@given(st.dictionaries(st.text(), VALUES, max_size=5), st.data(), st.booleans())
def test_every_cut_of_a_valid_object_can_be_read(members, data, ascii_only):
    """A cut of any object yields only values of the object."""
    text = json.dumps(members, ensure_ascii=ascii_only).encode("utf-8", "replace")
    end = data.draw(st.integers(0, len(text)))
    assert is_part(cut(text[:end]).members, orjson.loads(text))


@given(st.binary() | st.text(alphabet='{}[]",:\\u1e ').map(str.encode), st.booleans())
def test_only_bad_request_escapes(body, complete):
    """Random bytes are read or refused."""
    try:
        read_object(b"{" + body, complete=complete, place="p")
    except BadRequest as error:
        assert error.message  # noqa: PT017 - either outcome is right


def test_bracket_bound():
    """A first part of more brackets than the bound is refused, exactly beyond it."""
    pairs = budget.MAX_CONTAINERS - 1
    assert len(cut(b'{"a":[' + b"[]," * (pairs)).members["a"]) == pairs
    with pytest.raises(UnsoundRequest, match="more than 12288 arrays and objects"):
        cut(b'{"a":[' + b"[]," * (pairs + 1))


def test_a_guess_is_counted_first():
    """A cut in a known text does not let more arrays through than a cut elsewhere."""
    with pytest.raises(UnsoundRequest, match="more than 12288 arrays and objects"):
        cut(b'{"a":[' + b"[]," * budget.MAX_CONTAINERS + b'0],"prompt":"x')


def test_brackets_in_a_text_do_not_count():
    """A prompt may consist of brackets: a short document is then read all the same."""
    prompt = "[" * (budget.MAX_CONTAINERS + 2)
    document = read_object(json.dumps({"prompt": prompt}).encode(), complete=True, place="p")
    assert (document.members, document.whole) == ({"prompt": prompt}, True)


@pytest.mark.parametrize(("unit", "most"), [(b"[],", 49), (b"{},", 49), (b"0,", 50)])
def test_bound_of_a_long_document(monkeypatch, unit, most):
    """One of more brackets of a kind or commas than the bound is read as a first part."""
    monkeypatch.setattr(json_prefix, "MAX_CUT_BYTES", 100)
    monkeypatch.setattr(json_prefix, "FREE_BYTES", 100)
    for bound in ("MAX_CONTAINERS", "MAX_COMMAS"):
        monkeypatch.setattr(json_prefix, bound, 50)
    monkeypatch.setattr(json_prefix, "_RARE", 10)
    head, tail = b'{"a":[', b"0]}"
    assert read_object(head + unit * most + tail, complete=True, place="p").whole
    assert not read_object(head + unit * (most + 1) + tail, complete=True, place="p").whole


@pytest.mark.parametrize(
    "text",
    [
        '{"messages":[{"role":"user","content":"what is \\"this\\" and',
        '{"messages":[{"content":[{"type":"text","text":"a',
        '{"text_input":"a',
        '{"prompt": ["a", "b',
        '{"prompt": [ "b',
        '{"inputs":[{"name":"text_input","data":["a',
        '{"a":{"prompt":"x',
        '{"prompt":"x","b',
        '{"prompt":"x\\\\"',
        '{"prompt":"\\\\\\"',
        '{"prompt":"' + '\\"' * 200,
    ],
)
def test_a_guess_says_what_the_outline_says(text, monkeypatch):
    """If a guess closes the document, the slow way closes it equally."""
    guessed = cut(text)
    monkeypatch.setattr(json_prefix, "_guess", lambda _: None)
    assert guessed == cut(text)


KEYS = st.sampled_from(["content", "text", "text_input", "prompt", "input", "data", "messages"])


MESSAGES = st.lists(st.dictionaries(KEYS, VALUES, max_size=2), max_size=2)


@given(st.dictionaries(KEYS, VALUES | MESSAGES, max_size=3), st.data())
def test_guessing_changes_nothing(members, data):
    """The result is the same with and without a guess."""
    text = json.dumps(members, separators=(",", ":")).encode("utf-8", "replace")
    head = text[: data.draw(st.integers(0, len(text)))]
    closed = json_prefix._guess(head)
    if closed is None:
        return
    text, whole, _ = json_prefix._close(head, "p")
    assert (closed, False) == (orjson.loads(text), whole)


@pytest.mark.parametrize(
    "text", ['b":1,"c', "ends with \\", '\\"\\\\', ":\n" * 9, '": {' * 300, '\\"' * 300]
)
def test_a_repeated_key_is_seen_beside_any_text(text: str) -> None:
    """Of a key that is repeated Triton takes the first value, whatever is escaped in a text."""
    once = json.dumps({"text_input": text, "a": 1})
    for body in (once, f'{once[:-1]}, "a": 2}}'):
        document = read_object(body.encode(), complete=True, place="body", rules=Rules.TRITON)
        assert document.members == {"text_input": text, "a": 1}
