"""Addresses and host names, and the pools that each reaches."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from support.fleets import fleet, pool
from xds_server.fleet.channels import drains
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.rules.fleet import problems

ONE = [{"name": "stable"}]
TLS = {"certificate": "/a.crt", "key": "/a.key"}
CHAT = "/v1/chat/completions"


def three(listener: dict[str, Any], shared: int = 3) -> Fleet:
    """Return pools `a` (default), `b` and `c` with a path in common; `c` is on this replica."""
    return fleet(
        *(
            pool(
                name,
                default=name == "a",
                variants=ONE,
                match={"models": [name], "paths": [CHAT]},
                endpoints=[{"id": f"r{number}", "http": f"127.0.0.1:{9000 + number}"}],
            )
            for name, number in (("a", 1), ("b", 2), ("c", shared))
        ),
        listener=listener,
    )


def found(of: Fleet) -> list[str]:
    """Return the places of all problems."""
    return [problem.path for problem in problems(of)]


def further(**more: Any) -> dict[str, Any]:
    """Return a further listener."""
    return {"name": "inner", "address": "127.0.0.1:10001", **more}


@pytest.mark.parametrize(
    ("listener", "places"),
    [
        ({"pools": ["a", "b"]}, []),
        ({"pools": []}, []),
        ({"pools": ["a", "x"]}, ["listener.pools[1]"]),
        ({"pools": ["a", "a"]}, ["listener.pools[1]"]),
        ({"hosts": [{"names": ["a.b"], "pools": ["b"]}]}, []),
        ({"hosts": [{"names": ["a.b"], "pools": ["x"]}]}, ["listener.hosts[0].pools[0]"]),
        # Two pools share a path, and the default is not among them.
        ({"hosts": [{"names": ["a.b"], "pools": ["b", "c"]}]}, ["listener.hosts[0].pools"]),
        (
            {"hosts": [{"names": ["x", "a.b"], "pools": ["b"]}, {"names": ["x"], "pools": ["a"]}]},
            ["listener.hosts[1].names[0]"],
        ),
        ({"further": [further(pools=["b"])]}, []),
        ({"further": [further(pools=["x"])]}, ["listener.further[0].pools[0]"]),
        (
            {"further": [further(), further()]},
            [
                "listener.further[1].address",
                "listener.further[1].name",
            ],
        ),
        ({"further": [further(address="127.0.0.1:10000")]}, ["listener.further[0].address"]),
        ({"further": [further(address="127.0.0.1:9002")]}, ["pools[1].endpoints[0].http"]),
        ({"further": [further(address="127.0.0.1:18001")]}, ["pickers.addresses[0]"]),
        ({"http3": True}, ["listener.http3"]),
        ({"http3": True, "tls": TLS}, []),
        ({"http3": True, "tls": {**TLS, "client_ca": "/ca.crt"}}, ["listener.http3"]),
        ({"http3": True, "tls": TLS, "proxy_protocol": True}, ["listener.http3"]),
    ],
)
def test_pools_and_addresses_exist_and_fit(listener: dict[str, Any], places: list[str]) -> None:
    """What a host reaches must be answerable, and no address is taken twice."""
    assert found(three(listener)) == places


def test_pools_on_one_replica_are_reached_together() -> None:
    """Through the one a request could name the other's model."""
    of = three({"pools": ["a", "b"]}, shared=2)
    assert found(of) == ["listener.pools"]
    assert "replica 'r2'" in problems(of)[0].message
    assert found(three({"pools": ["a", "b", "c"]}, shared=2)) == []


@pytest.mark.parametrize("name", ["", "*", "A.example", "a.*", "a.example:80", "*.*.a", "a_b!"])
def test_a_host_is_a_name(name: str) -> None:
    """In lower case and without a port, which Envoy ignores."""
    with pytest.raises(ValidationError):
        three({"hosts": [{"names": [name], "pools": ["a"]}]})


def test_a_listener_that_comes_drains_nothing() -> None:
    """One that goes, or changes, drains its connections."""
    without, inner = three({}), three({"further": [further()]})
    moved = three({"further": [further(address="127.0.0.1:10002")]})
    assert drains(without, inner) == ()
    assert drains(inner, without) == drains(inner, moved) == ("listener.further",)
    assert drains(inner, three({"further": [further(pools=["a"])]})) == ()
    plain, http3 = three({"tls": TLS}), three({"tls": TLS, "http3": True})
    assert drains(plain, http3) == ()
    assert drains(http3, plain) == ("listener.http3",)
