"""Certificates of the server and of its clients that end soon."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tidegate_common.tls.pem import Validity
from xds_server.admin.certificates import MAX_SHOWN, Certificates
from xds_server.traffic.verdict import CertificateState

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


def test_without_tls_there_is_nothing_to_find() -> None:
    """Nor anything that ends."""
    assert Certificates(None, tuple, lambda: NOW).found() == ()
