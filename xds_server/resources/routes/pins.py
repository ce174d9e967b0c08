"""Header and cookie matchers of routes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from envoy.config.route.v3 import route_components_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xds_server.fleet.model.fleet import VariantMatch


def header_is(name: str, value: str) -> Any:
    """Return a matcher of a header with exactly this value."""
    return route_components_pb2.HeaderMatcher(name=name, string_match={"exact": value})


def header_present(name: str) -> Any:
    """Return a matcher of a header with any value."""
    return route_components_pb2.HeaderMatcher(name=name, present_match=True)


def header_in(name: str, values: Sequence[str]) -> Any:
    """Return a matcher of a header with one of these values."""
    if len(values) == 1:
        return header_is(name, values[0])
    regex = "|".join(re.escape(value) for value in values)
    return route_components_pb2.HeaderMatcher(
        name=name, string_match={"safe_regex": {"regex": regex}}
    )


def cookie_is(name: str, value: str) -> Any:
    """Return a matcher of a cookie with exactly this value, at any position in the header.

    Envoy joins HTTP/2's split cookies with ``; `` before matching (RFC 9113, 8.2.3).
    """
    regex = rf"(.*;\s*)?{re.escape(name)}={re.escape(value)}(\s*;.*)?"
    return route_components_pb2.HeaderMatcher(
        name="cookie", string_match={"safe_regex": {"regex": regex}}
    )


def pins_of(match: VariantMatch) -> list[Any]:
    """Return the matchers that all must match to pin a request to a variant."""
    return [
        *(header_is(*item) for item in sorted(match.headers.items())),
        *(cookie_is(*item) for item in sorted(match.cookies.items())),
    ]
