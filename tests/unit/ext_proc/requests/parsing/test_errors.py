"""The one error."""

from __future__ import annotations

from ext_proc.requests import BadRequest


def test_message():
    """The sentence for the caller is an attribute."""
    error = BadRequest("do this")
    assert error.message == str(error) == "do this"
