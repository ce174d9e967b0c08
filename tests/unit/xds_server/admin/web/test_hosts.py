"""Requests of foreign pages are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.admin.web.app import foreign


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:18011", "LOCALHOST:1", "127.0.0.1:18011", "[::1]:18011", "10.0.0.7"],
)
def test_hosts_that_no_page_can_have_are_taken(host: str) -> None:
    """A name that points here (DNS rebinding) would be in their place."""
    assert foreign(host, None, None) is None


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "localhost:x",
        "evil.example@localhost",
        "localhost@evil.example",
        "localhost/evil",
        "[::1",
    ],
)
def test_other_hosts_are_refused(host: str | None) -> None:
    """Unless the server was given that name."""
    assert foreign(host, None, None)
    assert foreign("Control.Infer:1", None, None, {"control.infer"}) is None


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", "http://localhost:1", "file://", "http://[", "é"]
)
def test_pages_of_another_origin_are_refused(origin: str) -> None:
    """They could let a browser act for an operator."""
    assert foreign("localhost:2", origin, None)


def test_pages_of_the_server_itself_are_taken() -> None:
    """A console of its own is one."""
    assert foreign("localhost:2", "http://localhost:2", "same-origin") is None
    assert foreign("localhost:2", None, "cross-site")
    assert foreign("localhost:2", None, "same-site")


@given(st.text(max_size=60), st.none() | st.text(max_size=60), st.none() | st.text(max_size=20))
def test_no_header_breaks_the_check(host: str, origin: str | None, site: str | None) -> None:
    """And what is taken has a host that is known."""
    if foreign(host, origin, site) is None:
        name = host.lower().partition(":")[0].strip("[]")
        assert name == "localhost" or not any(each in "ghijklmnopqrstuvwxyz" for each in name)
