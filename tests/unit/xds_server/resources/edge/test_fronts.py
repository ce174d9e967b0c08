"""Several listeners and host names in Envoy's resources."""

from __future__ import annotations

from typing import Any

from envoy.config.core.v3 import address_pb2
from envoy.config.route.v3 import route_pb2

from support.envoy_messages import cluster_of, read_listener
from support.fleets import endpoint, fleet, pool
from tidegate_api.names import LISTENER_TYPE, ROUTE_TYPE, SECRET_TYPE, parse_cluster
from xds_server.fleet.view import View
from xds_server.snapshots.build import front_resources
from xds_server.snapshots.stages import plan

TLS = {"certificate": "/a.crt", "key": "/a.key"}
CHAT = "/v1/chat/completions"
OF = fleet(
    pool("a", default=True, match={"models": ["a"], "paths": [CHAT]}),
    pool(
        "b",
        match={"models": ["b"], "paths": [CHAT]},
        endpoints=[endpoint(7), endpoint(8, variant="canary")],
    ),
    listener={
        "tls": TLS,
        "http3": True,
        "hosts": [{"names": ["b.example", "*.b.example"], "pools": ["b"]}],
        "further": [
            {"name": "inner", "address": "127.0.0.1:10001", "tls": {**TLS, "client_ca": "/ca"}},
            {"name": "open", "address": "127.0.0.1:10002", "pools": ["a"]},
        ],
    },
)


def hosts(name: str) -> dict[str, Any]:
    """Return the virtual hosts of a route configuration by their first domain."""
    config = route_pb2.RouteConfiguration.FromString(front_resources(OF)[ROUTE_TYPE][name])
    assert config.name == name
    return {host.domains[0]: host for host in config.virtual_hosts}


def pools(host: Any) -> set[str]:
    """Return the pools that a virtual host's routes reach."""
    forwarding = (route for route in host.routes if route.HasField("route"))
    return {parse_cluster(cluster_of(route)).pool for route in forwarding}


def test_each_listener_has_its_address_its_routes_and_its_certificate() -> None:
    """HTTP/3 is a listener on UDP with the routes of the first one."""
    made = {}
    for name, data in front_resources(OF)[LISTENER_TYPE].items():
        message, (manager, *_) = read_listener(data)
        where = message.address.socket_address
        udp = where.protocol == address_pb2.SocketAddress.UDP
        assert (message.name, udp) == (name, message.HasField("udp_listener_config"))
        assert udp == (manager.codec_type == manager.HTTP3)
        made[name] = (where.port_value, manager.rds.route_config_name)
        if name.endswith("inner"):
            assert b"listener/inner/client-ca" in data
    assert made == {
        "tidegate-ingress": (10000, "tidegate-routes"),
        "tidegate-ingress-h3": (10000, "tidegate-routes"),
        "tidegate-ingress/inner": (10001, "tidegate-routes/inner"),
        "tidegate-ingress/open": (10002, "tidegate-routes/open"),
    }
    assert sorted(front_resources(OF)[SECRET_TYPE]) == [
        "listener/certificate",
        "listener/inner/certificate",
        "listener/inner/client-ca",
    ]


def test_a_host_reaches_its_pools_alone() -> None:
    """And so does a listener; without a list they reach all."""
    first = hosts("tidegate-routes")
    assert list(first) == ["b.example", "*"]
    assert list(first["b.example"].domains) == ["b.example", "*.b.example"]
    assert pools(first["b.example"]) == {"b"}
    assert pools(first["*"]) == {"a", "b"}
    assert pools(hosts("tidegate-routes/open")["*"]) == {"a"}
    assert pools(hosts("tidegate-routes/inner")["*"]) == {"a", "b"}


def test_what_the_picker_sends_elsewhere_is_not_found() -> None:
    """It knows all pools: behind the routes that it may choose, one refuses the others."""
    routes = [route.name for route in hosts("tidegate-routes/open")["*"].routes]
    at = routes.index("hidden")
    before = ("picked/", "without-pick/")
    assert all(name.startswith(before) for name in routes[:at])
    assert not any(name.startswith(before) for name in routes[at:])
    assert "hidden" not in [route.name for route in hosts("tidegate-routes/inner")["*"].routes]


def test_clients_are_told_of_http_3() -> None:
    """By the answers of the listener that has it, with its port."""
    told = {}
    for name, data in front_resources(OF)[ROUTE_TYPE].items():
        config = route_pb2.RouteConfiguration.FromString(data)
        told[name] = [each.header.value for each in config.response_headers_to_add]
        assert config.ignore_port_in_host_matching == (name == "tidegate-routes")
    assert told == {
        "tidegate-routes": ['h3=":10000"; ma=86400'],
        "tidegate-routes/inner": [],
        "tidegate-routes/open": [],
    }


def test_a_change_of_listeners_is_consistent_at_every_stage() -> None:
    """Each stage is checked as a whole; a listener comes with its routes, and goes with them."""
    plain = OF.model_copy(update={"listener": fleet().listener})
    for old, new in ((plain, OF), (OF, plain)):
        stages = plan(View(old), View(new))
        assert stages[-1].snapshot.resources(LISTENER_TYPE).keys() == (
            front_resources(new)[LISTENER_TYPE].keys()
        )
