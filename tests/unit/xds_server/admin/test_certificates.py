"""Certificates of the server, of its clients and of Envoys' listeners that end soon."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from support.fleets import fleet, pool
from tidegate_common.tls.pem import Validity
from xds_server.admin.certificates import (
    ASKED_AT_ONCE,
    MAX_ASKED,
    MAX_SHOWN,
    Certificates,
    ServedCertificates,
    certificate_files,
)
from xds_server.applications.traffic.verdict import CertificateState

TLS = {"certificate": "/c.pem", "key": "/k.pem"}
DAY = 86_400.0
NOW = 1000 * DAY


def held(left_days: float, life_days: float = 90.0) -> Validity:
    """Return a certificate with so much time left."""
    return Validity(NOW + (left_days - life_days) * DAY, NOW + left_days * DAY)


def client(node: str, certificate: Validity | None) -> Any:
    """Return a connected Envoy."""
    return SimpleNamespace(node=node, kind="envoy", certificate=certificate)


def found(own: Validity, *clients: Any, fault: str = "") -> list[CertificateState]:
    """Return what the server says of its own certificate and those of its clients."""
    identity = SimpleNamespace(fault=fault, material=SimpleNamespace(validity=own))
    secured: Any = SimpleNamespace(identity=identity, max_age_s=3600.0)
    return list(Certificates(secured, lambda: clients, lambda: NOW).found())


def test_only_those_that_end_soon_are_found() -> None:
    """A client without a certificate, as at a port where none is asked for, is none of them."""
    clients = (client("e1", held(60)), client("e2", held(3)), client("e3", None))
    assert found(held(60), *clients) == [CertificateState("envoy e2", 3 * DAY)]
    assert found(held(1)) == [CertificateState("the control server", DAY)]


def test_new_files_that_cannot_be_used_are_found_at_once() -> None:
    """However long the certificate in force lasts."""
    state = CertificateState("the control server", 60 * DAY, "half a file")
    assert found(held(60), fault="half a file") == [state]


def test_short_lives_of_clients_are_not_judged() -> None:
    """Their connection may be older than their new files."""
    assert found(held(60), client("e1", held(0.01, 0.3))) == []
    assert len(found(held(60), client("e1", held(0.01, 0.4)))) == 1


def test_a_client_with_two_streams_is_told_once_and_all_are_bounded() -> None:
    """A fleet of thousand Envoys makes no book."""
    assert len(found(held(60), client("e1", held(3)), client("e1", held(3)))) == 1
    many = [client(f"e{number}", held(3)) for number in range(100)]
    assert len(found(held(3), *many)) == MAX_SHOWN


def test_all_files_that_a_fleet_names_are_known() -> None:
    """Listeners, and what Envoy shows to replicas, pickers and gateways."""
    shown = {**TLS, "ca": "/ca.pem"}
    made = fleet(
        pool(default=True, upstream_tls=shown),
        listener={
            "tls": TLS,
            "further": [{"name": "b", "address": "127.0.0.1:10001", "tls": TLS}],
        },
        pickers={"addresses": ["127.0.0.1:1"], "tls": shown},
    )
    assert list(certificate_files(made)) == [
        ("the listener", "/c.pem"),
        ("listener b", "/c.pem"),
        ("Envoy to pool llm", "/c.pem"),
        ("Envoy to pickers", "/c.pem"),
    ]


def test_without_tls_there_is_nothing_to_find() -> None:
    """Nor anything that ends."""
    assert not Certificates(None, tuple, lambda: NOW).found()


def fronted(address: str, **further: Any) -> Any:
    """Return a fleet with TLS on its listener, and a further one."""
    further = {"name": "b", "address": "10.0.0.9:444", **further}
    return fleet(listener={"address": address, "tls": TLS, "further": [further]})


def connected(node: str, peer: str, kind: str = "envoy", version: str = "1") -> Any:
    """Return a client that has acknowledged this version of its listeners."""
    types = (SimpleNamespace(short="LDS", version_acked=version),)
    return SimpleNamespace(node=node, kind=kind, peer=peer, types=types)


class Asked:
    """Answers instead of listeners, and notes who was asked."""

    def __init__(self, answer: Validity | Exception) -> None:
        self.answer = answer
        self.seen: list[tuple[str, int, bool]] = []
        self.now = 0
        self.most = 0

    async def __call__(self, host: str, port: int, *, proxy_protocol: bool) -> Validity:
        """Answer."""
        self.seen.append((host, port, proxy_protocol))
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("address", "peer", "asked"),
    [
        ("0.0.0.0:443", "ipv4:10.0.0.7:4711", "10.0.0.7"),
        ("[::]:443", "ipv6:%5Bfd00::7%5D:4711", "fd00::7"),
        ("[::]:443", "ipv6:[::ffff:10.0.0.7]:4711", "10.0.0.7"),
        ("0.0.0.0:443", "unix:", "127.0.0.1"),
        ("0.0.0.0:443", "somewhere", None),
        ("10.0.0.1:443", "ipv4:10.0.0.7:4711", "10.0.0.1"),
        ("10.0.0.1:443", "somewhere", "10.0.0.1"),
        ("127.0.0.1:443", "ipv4:127.0.0.1:4711", "127.0.0.1"),
        ("127.0.0.1:443", "unix:", "127.0.0.1"),
        ("127.0.0.1:443", "ipv4:10.0.0.7:4711", None),
        ("127.0.0.1:443", "somewhere", None),
    ],
)
async def test_a_listener_is_asked_where_it_can_be(
    address: str, peer: str, asked: str | None
) -> None:
    """Another host's loopback is not this one's, and a wildcard is where the Envoy is."""
    ask = Asked(held(60))
    await ServedCertificates(lambda: fronted(address), lambda: [connected("e1", peer)], ask).look()
    assert ask.seen == ([] if asked is None else [(asked, 443, False)])


async def test_listeners_of_envoys_with_tls_are_asked() -> None:
    """Not of pickers, nor of Envoys that have no listener of ours yet, nor without a fleet."""
    made = fronted("10.0.0.1:443", tls=TLS, proxy_protocol=True)
    clients = [
        connected("e1", "unix:"),
        connected("p1", "unix:", kind="picker"),
        connected("e2", "unix:", version=""),
        SimpleNamespace(node="e3", kind="envoy", peer="unix:", types=()),
    ]
    ask = Asked(held(60))
    await ServedCertificates(lambda: made, lambda: clients, ask).look()
    assert ask.seen == [("10.0.0.1", 443, False), ("10.0.0.9", 444, True)]
    await ServedCertificates(lambda: None, lambda: clients, ask).look()
    assert len(ask.seen) == 2


async def test_what_an_envoy_serves_is_told_where_its_file_is_well() -> None:
    """What a file tells is not told again, and a listener that does not answer says nothing."""
    ask = Asked(held(3))
    served = ServedCertificates(
        lambda: fronted("10.0.0.1:443"), lambda: [connected("e1", "unix:")], ask
    )
    found = Certificates(None, tuple, lambda: NOW, served=served).found
    assert found() == []
    await served.look()
    assert found() == [CertificateState("the listener at Envoy e1", 3 * DAY)]
    assert list(served.ending(NOW, ["the listener"])) == []
    for answer in (held(60), OSError(), ValueError()):
        ask.answer = held(3)
        await served.look()
        assert found()
        ask.answer = answer
        await served.look()
        assert found() == []


async def test_as_many_listeners_are_asked_as_is_written() -> None:
    """And as many at a time."""
    many = [connected(f"e{n}", f"ipv4:10.0.{n // 250}.{n % 250}:1") for n in range(MAX_ASKED + 9)]
    ask = Asked(held(60))
    await ServedCertificates(lambda: fronted("0.0.0.0:443"), lambda: many, ask).look()
    assert (len(ask.seen), ask.most) == (MAX_ASKED, ASKED_AT_ONCE)
