"""Addresses that others can reach."""

from __future__ import annotations

import pytest
import structlog

from ext_proc.settings import PickerSettings
from gateway.settings import GatewaySettings
from support.identities import Machines
from tidegate_common.tls.binds import is_local, open_ports
from tidegate_common.tls.files import TlsError
from tidegate_common.tls.settings import secured
from xds_server.settings import ControlSettings


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "LOCALHOST:0", "[::ffff:127.0.0.1]:1"],
)
def test_loopback_is_local(address: str) -> None:
    """In each of its spellings."""
    assert is_local(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0:1",
        "[::]:1",
        "10.0.0.1:1",
        "[fe80::1%eth0]:1",
        "host.example:1",
        "[::ffff:10.0.0.1]:1",
    ],
)
def test_anything_else_is_not(address: str) -> None:
    """All interfaces, addresses of the machine, and names."""
    assert not is_local(address)


def test_each_open_port_is_named() -> None:
    """One message shows all that is to be changed."""
    given = {"--listen": "127.0.0.1:1,10.0.0.1:2", "--metrics": "0.0.0.0:3"}
    assert open_ports(given) == "--listen 10.0.0.1:2, --metrics 0.0.0.0:3"


OPEN = [
    lambda **more: ControlSettings(fleet="f", admin="0.0.0.0:18010", **more),
    lambda **more: ControlSettings(fleet="f", ads="10.0.0.1:18000", **more),
    lambda **more: ControlSettings(fleet="f", metrics="[::]:18080", **more),
    lambda **more: PickerSettings(listen="0.0.0.0:18001", **more),
    lambda **more: PickerSettings(metrics="0.0.0.0:18081", **more),
    lambda **more: GatewaySettings(id="g", admin="0.0.0.0:18022", **more),
]


@pytest.mark.parametrize("settings", OPEN)
def test_an_open_port_without_tls_is_refused(settings) -> None:
    """The message says what would be right."""
    with pytest.raises(
        TlsError, match=r"without TLS.*--tls-cert.*or --insecure if something else protects it"
    ):
        secured(settings())


@pytest.mark.parametrize("settings", OPEN)
def test_an_open_port_may_be_insecure_and_says_so(settings) -> None:
    """Where a network or a proxy protects it; the log shows that nothing else does."""
    with structlog.testing.capture_logs() as logs:
        assert secured(settings(insecure=True)) is None
    assert [each["event"] for each in logs] == ["open_without_tls"]


def test_ports_on_loopback_are_as_they_were() -> None:
    """Nothing is asked for and nothing is said."""
    with structlog.testing.capture_logs() as logs:
        assert secured(PickerSettings()) is None
        assert secured(ControlSettings(fleet="f")) is None
        assert secured(GatewaySettings(id="g")) is None
    assert logs == []


def test_an_open_port_with_tls_is_taken(tmp_path) -> None:
    """Its callers need certificates."""
    own = Machines(tmp_path)
    assert secured(PickerSettings(listen="0.0.0.0:18001", **own.options)) is not None


def test_a_health_port_is_open_without_saying_so() -> None:
    """It says whether the process is ready, and is for probes of other machines."""
    assert secured(PickerSettings(health_port=18090)) is None
