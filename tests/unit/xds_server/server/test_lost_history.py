"""Clients of an older history beside a new one."""

from __future__ import annotations

import pytest

from tidegate_api.names import CLUSTER_TYPE, POOL_TYPE
from xds_server.protocol.messages import ProtocolError
from xds_server.protocol.stream import DeltaStream
from xds_server.server import lost_history as module
from xds_server.server.connection import AdsConnection
from xds_server.server.lost_history import LOOK_S, LostHistory


class Look:
    """A look at clients, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.history = LostHistory("s/tidegate.db", lambda: self.now, look=True)

    def at(self, node: str, type_url: str = CLUSTER_TYPE, *, holds: bool = False) -> None:
        """Let a client request a type on a new stream."""
        stream = DeltaStream("s")
        client = AdsConnection(1, "delta", "ipv4:10.0.0.1:5", 0.0, stream, node=node)
        self.history.check(client, type_url, holds=holds)


def test_a_client_that_holds_resources_of_an_older_history_is_found() -> None:
    """It is refused, also later; the reason names store, client and remedy."""
    look = Look()
    for _ in range(2):
        with pytest.raises(ProtocolError, match=r"^s/tidegate\.db was empty, but envoy-1 .*5\) "):
            look.at("envoy-1", holds=True)
        look.now += 2 * LOOK_S
    assert look.history.found.is_set()
    assert "--accept-loss" in look.history.reason


def test_a_client_that_comes_again_is_served() -> None:
    """It holds what this process gave it; of another type, or as another node, it does not."""
    look = Look()
    look.at("envoy-1")
    look.at("envoy-1", holds=True)
    with pytest.raises(ProtocolError):
        look.at("envoy-1", POOL_TYPE, holds=True)


def test_a_client_that_holds_nothing_is_served_beside_it() -> None:
    """Also when it comes again: what one client states harms no other."""
    look = Look()
    look.at("envoy-2")
    with pytest.raises(ProtocolError):
        look.at("envoy-1", holds=True)
    look.at("envoy-2", holds=True)
    look.at("envoy-3")
    look.at("envoy-3", holds=True)


def test_clients_are_looked_at_for_a_minute() -> None:
    """One that comes later may be of another fleet."""
    look = Look()
    look.now += LOOK_S + 0.1
    look.at("envoy-1", holds=True)
    assert not look.history.found.is_set()


def test_the_clients_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the bound nothing is found, so that no client of ours is taken for another's."""
    monkeypatch.setattr(module, "MAX_KNOWN", 2)
    look = Look()
    for node in ("a", "b", "c"):
        look.at(node)
    look.at("c", holds=True)
    assert not look.history.found.is_set()
