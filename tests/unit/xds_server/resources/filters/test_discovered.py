"""Filters whose settings travel by themselves."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.config.core.v3 import extension_pb2
from envoy.extensions.filters.http.ext_proc.v3 import ext_proc_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2

from support.envoy_messages import listener_of, read_routes
from support.fleets import fleet, pool
from tidegate_api.names import (
    CERTIFICATE_ATTRIBUTES,
    COMPRESS_FILTERS,
    PICKER_FILTER,
    SOURCE_ATTRIBUTE,
    STRIP_FILTER,
)
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.view import LOG_SLOTS
from xds_server.resources.filters.discovered import (
    admitted,
    extensions,
    refused_headers,
)
from xds_server.resources.listener import listener
from xds_server.resources.routes.table import route_configuration

PINNED = [
    {"name": "stable"},
    {"name": "canary", "match": {"headers": {"x-ab": "b"}}},
]


def pinned(**settings: Any) -> Fleet:
    """Return a fleet with a pinned variant and these settings of its listener."""
    return fleet(pool(variants=PINNED), listener=settings)


def settings_of(of: Fleet, name: str) -> extension_pb2.TypedExtensionConfig:
    """Return the settings of one filter."""
    return extension_pb2.TypedExtensionConfig.FromString(extensions(of)[name])


def test_what_is_not_listed_is_stripped() -> None:
    """The list replaces the default, by which a client may choose neither pool nor policy."""
    assert refused_headers(pinned()) == ["tidegate-policy", "tidegate-pool"]
    every = ["tidegate-model", "tidegate-policy", "tidegate-pool", "x-ab"]
    assert refused_headers(pinned(client_headers=[])) == every
    assert refused_headers(pinned(client_headers=["tidegate-pool", "x-ab"])) == every[:2]


def test_the_filter_removes_what_is_refused() -> None:
    """Neither the picker nor a replica sees it; then the request is marked as repeatable."""
    made = header_mutation_pb2.HeaderMutation()
    of = pinned(client_headers=["x-ab"])
    assert settings_of(of, STRIP_FILTER).typed_config.Unpack(made)
    *removed, last = made.mutations.request_mutations
    assert [one.remove for one in removed] == refused_headers(of)
    assert (last.append.header.key, last.append.header.value) == ("x-tidegate-repeatable", "1")
    assert last.append.append_action == last.append.OVERWRITE_IF_EXISTS_OR_ADD


def test_no_route_matches_by_a_refused_header() -> None:
    """Routes match before the filter removes it."""
    for taken, names in ((["x-ab"], {"x-ab"}), ([], set())):
        routes = read_routes(route_configuration(pinned(client_headers=taken))).values()
        matched = {header.name for route in routes for header in route.match.headers}
        assert matched & {"x-ab", "tidegate-pool", "tidegate-model"} == names


def test_the_picker_is_told_the_client() -> None:
    """Its address always, the names of its certificate where a listener asks for certificates."""
    tls = {"certificate": "/c", "key": "/k"}
    asking = {"name": "inner", "address": "127.0.0.1:1", "tls": {**tls, "client_ca": "/ca"}}
    for settings, names in (
        ({}, []),
        ({"tls": tls}, []),
        ({"tls": {**tls, "client_ca": "/ca"}}, CERTIFICATE_ATTRIBUTES),
        ({"further": [asking]}, CERTIFICATE_ATTRIBUTES),
    ):
        made = ext_proc_pb2.ExternalProcessor()
        assert settings_of(pinned(**settings), PICKER_FILTER).typed_config.Unpack(made)
        assert made.request_attributes[4:] == [SOURCE_ATTRIBUTE, *names]


def test_a_fleet_without_refused_pins_is_left_as_it_is() -> None:
    """The usual case costs no copy."""
    of = pinned()
    assert admitted(of) is of


def test_the_listener_takes_filters_of_the_type_that_is_sent() -> None:
    """Envoy refuses settings of another type, and waits for them before it listens."""
    of = fleet()
    for manager in listener_of(of)[1]:
        found = {
            one.name: one.config_discovery
            for one in manager.http_filters
            if one.HasField("config_discovery")
        }
        known = {STRIP_FILTER, PICKER_FILTER, COMPRESS_FILTERS["gzip"]}
        assert set(found) == set(extensions(of)) == known
        for name, source in found.items():
            assert list(source.type_urls) == [settings_of(of, name).typed_config.type_url]
            assert not source.apply_default_config_without_warming
            assert source.config_source.HasField("initial_fetch_timeout")
            assert source.config_source.initial_fetch_timeout.ToNanoseconds() == 0


@pytest.mark.parametrize(
    "change",
    [
        {"pools": [pool(variants=PINNED)]},
        {"pools": [pool(routing={"session_header": "x-user"})]},
        {"listener": {"client_headers": ["tidegate-pool"]}},
        {"pickers": {"timeout": "0.2s"}},
        {"pickers": {"fail_open": False}},
    ],
)
def test_a_setting_of_a_filter_does_not_touch_the_listener(change: dict[str, Any]) -> None:
    """Nothing drains."""
    pools = change.pop("pools", [pool()])
    before, after = fleet(), fleet(*pools, **change)
    assert extensions(after) != extensions(before)
    assert listener(after.listener, LOG_SLOTS) == listener(before.listener, LOG_SLOTS)
