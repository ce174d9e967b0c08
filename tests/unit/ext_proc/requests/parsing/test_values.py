"""Checked conversions."""

from __future__ import annotations

import pytest

from ext_proc.requests.parsing import values
from ext_proc.requests.parsing.errors import BadRequest
from ext_proc.requests.parsing.values import MAX_NAME_CHARS, MAX_SESSION_CHARS, CutText


def test_name():
    """A name is a text within bounds; absent, empty and cut ones are unknown."""
    assert values.name("a" * MAX_NAME_CHARS, "x") == "a" * MAX_NAME_CHARS
    assert [values.name(value, "x") for value in (None, "", CutText("a"))] == [None] * 3
    with pytest.raises(BadRequest, match="x has 257 characters"):
        values.name("a" * (MAX_NAME_CHARS + 1), "x")


@pytest.mark.parametrize(
    ("value", "kind"),
    [(True, "a boolean"), (1.5, "a number"), ([], "an array"), ({}, "an object")],
)
def test_wrong_types_are_named(value, kind):
    """An error names the type that was found."""
    with pytest.raises(BadRequest, match=kind):
        values.sequence_id(value, "x")
    with pytest.raises(BadRequest, match=kind):
        values.name(value, "x")
    assert values.json_type(None) == "null"
    assert values.json_type("") == "a string"


def test_label():
    """An informative text is cut at the bound."""
    assert values.label("a" * 999) == "a" * MAX_NAME_CHARS
    assert [values.label(value) for value in (None, "", 5, CutText("a"))] == [None] * 4


def test_session():
    """A long session is replaced by its digest, and different ones differ."""
    bound = "a" * MAX_SESSION_CHARS
    assert values.session(bound) == bound
    long = values.session(bound + "b")
    assert len(long) < MAX_SESSION_CHARS
    assert long == values.session(bound + "b") != values.session(bound + "c")
    assert [values.session(value) for value in (None, "", 5, CutText("a"))] == [None] * 4


@pytest.mark.parametrize("value", [None, 0, -1, True, 1.0, "1", 2**63])
def test_not_positive(value):
    """Only positive integers of 63 bits are positive."""
    assert values.positive(value) is None
