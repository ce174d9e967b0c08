"""Resources for people, without secrets."""

from __future__ import annotations

import json

import pytest
from envoy.config.core.v3 import base_pb2, http_uri_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.route.v3 import route_components_pb2, route_pb2
from envoy.extensions.filters.http.api_key_auth.v3 import api_key_auth_pb2
from envoy.extensions.filters.http.lua.v3 import lua_pb2
from envoy.extensions.transport_sockets.tls.v3 import common_pb2, secret_pb2
from google.protobuf import any_pb2, struct_pb2
from hypothesis import given
from hypothesis import strategies as st

from support.fleets import fleet, pool
from tidegate_api.names import ENDPOINT_TYPE
from xds_server.admin.views.redaction import HIDDEN, readable
from xds_server.fleet.view import View
from xds_server.snapshots.build import front_resources, picker_resources, upstream_resources

PLANTED = "pl4nted-s3cret"


def shown(message) -> str:
    """Return what is shown of a message, as text."""
    packed = any_pb2.Any()
    packed.Pack(message)
    return json.dumps(readable(packed.SerializeToString()))


def metadata() -> base_pb2.Metadata:
    """Return metadata with a secret in a struct."""
    inner = struct_pb2.Struct()
    inner.update({"deep": [{"Api-Key": PLANTED, "plain": "kept"}]})
    return base_pb2.Metadata(filter_metadata={"tidegate": inner})


@pytest.mark.parametrize(
    "message",
    [
        secret_pb2.Secret(
            name="s",
            tls_certificate=common_pb2.TlsCertificate(
                private_key=base_pb2.DataSource(inline_string=PLANTED),
                password=base_pb2.DataSource(filename=PLANTED),
            ),
        ),
        secret_pb2.Secret(
            generic_secret=secret_pb2.GenericSecret(
                secret=base_pb2.DataSource(inline_bytes=PLANTED.encode())
            )
        ),
        api_key_auth_pb2.ApiKeyAuth(
            credentials=[api_key_auth_pb2.Credential(key=PLANTED, client="c")]
        ),
        lua_pb2.Lua(default_source_code=base_pb2.DataSource(inline_string=PLANTED)),
        base_pb2.HeaderValueOption(
            header=base_pb2.HeaderValue(key="Authorization", value=f"Bearer {PLANTED}")
        ),
        base_pb2.HeaderValue(key="x-api-key", raw_value=PLANTED.encode()),
        route_components_pb2.HeaderMatcher(name="cookie", exact_match=PLANTED),
        http_uri_pb2.HttpUri(
            uri=f"https://ann:{PLANTED}@keys.example/a?access_token={PLANTED}&b=1"
        ),
        http_uri_pb2.HttpUri(uri=f"https://keys.example/a?b=1&api_key={PLANTED}"),
        metadata(),
    ],
    ids=lambda each: each.DESCRIPTOR.name,
)
def test_secrets_are_hidden(message) -> None:
    """Whatever an operator may have put into a fleet or a filter's settings."""
    text = shown(message)
    assert PLANTED not in text
    assert HIDDEN in text or "bytes)" in text or "keys.example" in text


def test_a_secret_in_a_message_within_a_message_is_hidden() -> None:
    """Settings of filters are packed into others, at any depth."""
    inner = any_pb2.Any()
    inner.Pack(lua_pb2.Lua(default_source_code=base_pb2.DataSource(inline_string=PLANTED)))
    route = route_components_pb2.Route(name="r", typed_per_filter_config={"lua": inner})
    text = shown(route)
    assert PLANTED not in text
    assert "filters.http.lua.v3.Lua" in text


def test_what_has_no_known_schema_is_hidden() -> None:
    """Nobody can say what is in it."""
    unknown = any_pb2.Any(type_url="type.googleapis.com/acme.Own", value=PLANTED.encode())
    route = route_components_pb2.Route(typed_per_filter_config={"own": unknown})
    text = shown(route)
    assert "acme.Own" in text
    assert PLANTED not in text


def test_what_is_no_secret_is_shown() -> None:
    """Names of files, bodies of answers, headers, numbers and enums."""
    text = shown(
        route_pb2.RouteConfiguration(
            name="front",
            virtual_hosts=[
                route_components_pb2.VirtualHost(
                    name="all",
                    require_tls=route_components_pb2.VirtualHost.ALL,
                    response_headers_to_add=[
                        base_pb2.HeaderValueOption(
                            header=base_pb2.HeaderValue(key="via", value="tidegate")
                        )
                    ],
                    routes=[
                        route_components_pb2.Route(
                            direct_response=route_components_pb2.DirectResponseAction(
                                status=503, body=base_pb2.DataSource(inline_string="shed")
                            )
                        )
                    ],
                )
            ],
        )
    )
    for part in ('"front"', '"ALL"', '"tidegate"', "503", '"shed"'):
        assert part in text


@given(st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    """What cannot be read is hidden."""
    packed = any_pb2.Any(type_url=ENDPOINT_TYPE, value=data).SerializeToString()
    assert readable(packed) is not None
    assert readable(data) is not None


def test_every_resource_of_a_fleet_can_be_shown() -> None:
    """None of our own resources is hidden as a whole for want of a schema."""
    made = fleet(
        pool(default=True, jwt={"any_of": ["idp"]}),
        listener={
            "jwt": [
                {"name": "idp", "issuer": "https://idp.example", "jwks": f'{{"k":"{PLANTED}"}}'}
            ]
        },
    )
    view = View(made, {})
    for made_of in (upstream_resources(made), front_resources(made), picker_resources(view)):
        for url, messages in made_of.items():
            for name, message in messages.items():
                packed = any_pb2.Any(type_url=url, value=message).SerializeToString()
                found = readable(packed)
                assert PLANTED not in json.dumps(found), (url, name)
                assert found.get("value") != HIDDEN, (url, name)


def test_an_assignment_keeps_its_addresses() -> None:
    """They are what an operator looks for."""
    made = endpoint_pb2.ClusterLoadAssignment(cluster_name="llm/stable/grpc")
    host = made.endpoints.add().lb_endpoints.add().endpoint
    host.address.socket_address.address = "10.0.0.7"
    host.address.socket_address.port_value = 8001
    assert '"address": "10.0.0.7", "port_value": 8001' in shown(made)
