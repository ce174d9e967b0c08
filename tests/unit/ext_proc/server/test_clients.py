"""The client of a request."""

from __future__ import annotations

import pytest

from ext_proc.server.wire import MAX_NAME, client_at, client_named


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("203.0.113.7:4000", "203.0.113.7"),
        ("203.0.113.7:0", "203.0.113.7"),
        ("[2001:db8:1:2:3:4:5:6]:4000", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::9]:1", "2001:db8:1:2::/64"),
        ("[::ffff:203.0.113.7]:4000", "203.0.113.7"),
        ("/run/envoy.sock", None),
        ("@abstract:1", None),
        ("envoy://inner/:1", None),
        ("[no address]:1", None),
        ("", None),
    ],
)
def test_an_address_names_a_client(address, client):
    """One IPv4 address, or the /64 of an IPv6 address; what is no IP address names none."""
    assert client_at(address) == client


def test_long_names_of_certificates_stay_different_and_bounded():
    """Names that differ behind the bound are different clients."""
    names = ["CN=" + "x" * MAX_NAME + end for end in ("a", "b", "\udcff")]
    clients = {client_named(name) for name in names}
    assert len(clients) == len(names)
    assert all(len(client) <= MAX_NAME for client in clients)
    assert client_named("CN=batch") == "CN=batch"
