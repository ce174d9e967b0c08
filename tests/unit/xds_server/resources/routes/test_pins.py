"""Matchers of headers and cookies."""

from __future__ import annotations

import re

import pytest

from xds_server.fleet.model.fleet import VariantMatch
from xds_server.resources.routes.pins import cookie_is, header_in, pins_of


@pytest.mark.parametrize(
    ("header", "matched"),
    [
        ("ab=b", True),
        ("id=1; ab=b", True),
        ("ab=b; id=1", True),
        ("id=1;ab=b;x=2", True),
        ("ab=bb", False),
        ("cab=b", False),
        ("x=ab=b", False),
        ("ab=", False),
        ("", False),
    ],
)
def test_a_cookie_is_found_wherever_it_stands(header: str, matched: bool) -> None:
    """Name and value must match exactly, alone or among other cookies."""
    regex = cookie_is("ab", "b").string_match.safe_regex.regex
    assert (re.fullmatch(regex, header) is not None) == matched


def test_special_characters_are_literal() -> None:
    """Values are text, not patterns."""
    regex = cookie_is("a.b", "x+y").string_match.safe_regex.regex
    assert re.fullmatch(regex, "a.b=x+y")
    assert not re.fullmatch(regex, "aXb=xxy")
    assert header_in("m", ["a.b", "c"]).string_match.safe_regex.regex == r"a\.b|c"


def test_all_pins_must_match() -> None:
    """Envoy requires every matcher of a route; their order is fixed."""
    match = VariantMatch(headers={"x-b": "2", "x-a": "1"}, cookies={"ab": "b"})
    assert [pin.name for pin in pins_of(match)] == ["x-a", "x-b", "cookie"]
