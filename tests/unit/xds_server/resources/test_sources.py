"""Messages are written quicker, and checked as before."""

from __future__ import annotations

from datetime import timedelta

import pytest
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    ConfigSource,
    EnvoyInternalAddress,
    SocketAddress,
)
from pydantic import ValidationError
from pydantic_core import SchemaValidator

from xds_server.resources import sources
from xds_server.resources.sources import ads_source


def test_a_type_has_one_validator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second message of a type makes none."""
    made: list[object] = []

    def counted(schema: object) -> SchemaValidator:
        made.append(schema)
        return SchemaValidator(schema)  # type: ignore[arg-type]

    monkeypatch.setattr(sources, "_validators", {})
    monkeypatch.setattr(sources, "SchemaValidator", counted)
    first = bytes(ads_source(timedelta(seconds=1)))
    types = len(made)
    assert types > 1
    assert bytes(ads_source(timedelta(seconds=1))) == first
    assert len(made) == types


def test_annotations_of_a_type_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library asks for them once for each field of a type."""
    asked = SocketAddress._type_hints()
    monkeypatch.setattr("betterproto2.get_type_hints", lambda *_: pytest.fail("read again"))
    assert SocketAddress._type_hints() is asked
    assert set(asked) >= {"address", "port_value"}


@pytest.mark.parametrize("first", [True, False])
def test_a_wrong_value_is_refused(first: bool) -> None:
    """Also a value that was set later, in the first message of a type and in each other."""
    address = SocketAddress(address="127.0.0.1", port_value=1)
    if not first:
        assert bytes(address)
    address.port_value = "x"  # type: ignore[assignment]
    with pytest.raises(ValidationError, match="port_value"):
        bytes(address)


def test_two_of_one_choice_are_refused() -> None:
    """The checks between fields of a message are among those of its type."""
    both = Address(socket_address=SocketAddress(address="127.0.0.1", port_value=1))
    both.envoy_internal_address = EnvoyInternalAddress(server_listener_name="a")
    with pytest.raises(ValidationError, match="one"):
        bytes(both)


def test_a_message_inside_is_checked() -> None:
    """Each message checks its own fields, also deep inside another."""
    source = ConfigSource(initial_fetch_timeout=timedelta(seconds=1))
    assert bytes(source)
    source.ads = ads_source().ads
    assert source.ads is not None
    source.ads.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(ValidationError, match="extra"):
        bytes(source)
