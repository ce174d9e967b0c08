"""Clusters, assignments, listener and pools."""

from __future__ import annotations

import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import extension_pb2, health_check_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.extensions.filters.http.ext_proc.v3 import ext_proc_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)

from support.fleets import endpoint, fleet, pool
from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.names import (
    CLUSTER_TYPE,
    ENDPOINT_TYPE,
    PICKER_CLUSTER,
    PICKER_FILTER,
    STRIPPED_HEADERS,
    ClusterRef,
)
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.view import LOG_SLOTS, View
from xds_server.resources.endpoints import assignment
from xds_server.resources.filters.discovered import extensions
from xds_server.resources.listener import listener
from xds_server.snapshots.build import picker_resources, upstream_resources


def clusters(of: Fleet):
    """Return the clusters of a fleet by name."""
    return {
        name: cluster_pb2.Cluster.FromString(data)
        for name, data in upstream_resources(of)[CLUSTER_TYPE].items()
    }


def test_a_variant_without_replicas_still_has_an_assignment() -> None:
    """X32: an empty assignment completes warming, a missing one does not."""
    resources = upstream_resources(fleet(pool(endpoints=[endpoint(1)])))
    empty = endpoint_pb2.ClusterLoadAssignment.FromString(
        resources[ENDPOINT_TYPE]["llm/canary/http"]
    )
    assert empty.cluster_name == "llm/canary/http"
    assert not empty.endpoints


def test_readiness_is_probed_per_model_and_version() -> None:
    """A server that loads another model is not ready, but this model is."""
    check = clusters(fleet())["llm/canary/grpc"].health_checks[0]
    assert check.http_health_check.path == "/v2/models/llm-model/versions/2/ready"


def test_an_engine_without_tritons_api_is_there_for_envoy() -> None:
    """It answers 404 to a model's readiness, which Triton never does; a given path is strict."""
    paths = {"models": ["m"], "paths": ["/v1/completions"]}
    found = []
    for health, match in (
        ({}, paths),
        ({"path": "/health"}, paths),
        ({}, {"models": ["m"]}),
    ):
        made = clusters(fleet(pool(match=match, health=health)))["llm/stable/http"]
        check = made.health_checks[0].http_health_check
        found.append([each.start for each in check.expected_statuses])
    assert found == [[200, 404], [200], [200]]


def test_an_http_cluster_is_probed_over_http() -> None:
    """Also if another replica of the pool has no HTTP port; Envoy rejects anything else."""
    mixed = [endpoint(1), {"id": "g", "grpc": "127.0.0.1:9001"}]
    made = clusters(fleet(pool(endpoints=mixed)))
    kinds = [
        made[f"llm/stable/{p}"].health_checks[0].WhichOneof("health_checker")
        for p in ("http", "grpc")
    ]
    assert kinds == ["http_health_check", "grpc_health_check"]


def test_the_health_check_of_a_grpc_cluster_goes_to_the_http_port() -> None:
    """The readiness of a model is an HTTP status."""
    one = pool(endpoints=[endpoint(1)])
    data = assignment(fleet(one).pools[0], ClusterRef("llm", "stable", "grpc"))
    host = endpoint_pb2.ClusterLoadAssignment.FromString(data).endpoints[0].lb_endpoints[0]
    assert host.endpoint.address.socket_address.port_value == 8011
    assert host.endpoint.health_check_config.port_value == 8010


def test_a_draining_replica_stays_but_is_marked() -> None:
    """Envoy's own load balancing skips it; leases of sequences continue."""
    one = pool(endpoints=[endpoint(1, draining=True), endpoint(2)])
    data = assignment(fleet(one).pools[0], ClusterRef("llm", "stable", "http"))
    hosts = endpoint_pb2.ClusterLoadAssignment.FromString(data).endpoints[0].lb_endpoints
    assert [host.health_status for host in hosts] == [
        health_check_pb2.DRAINING,
        health_check_pb2.HEALTHY,
    ]


@pytest.mark.parametrize(("capacity", "weight"), [(1.0, 100), (2.5, 250), (0.001, 1)])
def test_capacity_becomes_a_weight(capacity: float, weight: int) -> None:
    """Envoy's weights are integers of at least 1."""
    one = pool(endpoints=[endpoint(1, capacity=capacity)])
    data = assignment(fleet(one).pools[0], ClusterRef("llm", "stable", "http"))
    host = endpoint_pb2.ClusterLoadAssignment.FromString(data).endpoints[0].lb_endpoints[0]
    assert host.load_balancing_weight.value == weight


def test_zones_are_localities() -> None:
    """Replicas of one zone share a locality."""
    one = pool(endpoints=[endpoint(1, zone="a"), endpoint(2, zone="b"), endpoint(4, zone="a")])
    data = assignment(fleet(one).pools[0], ClusterRef("llm", "stable", "http"))
    groups = endpoint_pb2.ClusterLoadAssignment.FromString(data).endpoints
    assert {g.locality.zone: len(g.lb_endpoints) for g in groups} == {"a": 2, "b": 1}


def test_envoy_itself_ejects_no_replica() -> None:
    """Clients can cause all that its outlier detection counts: answers, resets and timeouts."""
    outlier = clusters(fleet())["llm/stable/http"].outlier_detection
    enforcing = [field for field in outlier.DESCRIPTOR.fields_by_name if "enforcing" in field]
    assert {getattr(outlier, each).value for each in enforcing if outlier.HasField(each)} == {0}


def test_the_picker_may_hold_one_stream_per_request() -> None:
    """Envoy's default of 1,024 concurrent requests would cap the traffic."""
    limits = clusters(fleet())[PICKER_CLUSTER].circuit_breakers.thresholds[0]
    assert limits.max_requests.value >= 100_000


def _processor(of: Fleet):
    message = listener_pb2.Listener.FromString(listener(of.listener, LOG_SLOTS))
    manager = http_connection_manager_pb2.HttpConnectionManager()
    message.filter_chains[0].filters[0].typed_config.Unpack(manager)
    processor = ext_proc_pb2.ExternalProcessor()
    made = extension_pb2.TypedExtensionConfig.FromString(extensions(of)[PICKER_FILTER])
    assert made.typed_config.Unpack(processor)
    return message, manager, processor


def test_control_headers_of_clients_are_removed_early() -> None:
    """A client must not choose its endpoint."""
    _, manager, _ = _processor(fleet())
    data = manager.early_header_mutation_extensions[0].typed_config.value
    assert all(header.encode() in data for header in STRIPPED_HEADERS)


def test_credentials_never_reach_the_picker() -> None:
    """Only a list of harmless headers and the fleet's match headers are forwarded."""
    variants = [{"name": "s", "match": {"headers": {"x-ab": "b"}}}]
    of = fleet(pool(variants=variants, endpoints=[endpoint(1)], routing={"session_header": "x-me"}))
    _, _, processor = _processor(of)
    patterns = processor.forward_rules.allowed_headers.patterns
    exact = {pattern.exact for pattern in patterns if pattern.exact}
    assert {":path", "x-ab", "x-me"} <= exact
    assert not exact & {"authorization", "cookie"}


def test_the_pick_is_received_and_its_failure_allowed() -> None:
    """Metadata of the picker is accepted only in its namespaces; its failure is allowed."""
    message, _, processor = _processor(fleet(pickers={"addresses": ["127.0.0.1:9"]}))
    assert list(processor.metadata_options.receiving_namespaces.untyped) == ["envoy.lb", "tidegate"]
    assert processor.failure_mode_allow
    assert processor.allow_mode_override
    assert message.per_connection_buffer_limit_bytes.value == 65_536


def test_pickers_get_the_whole_pool() -> None:
    """The Pool resource carries identity, addresses, weights and defaults."""
    of = fleet(pool(match={"models": ["m"], "paths": ["/v1/completions"]}))
    view = View(of, {"r2": (7, 1234)})
    message = pool_pb2.Pool.FromString(
        picker_resources(view)["type.googleapis.com/tidegate.fleet.v1.Pool"]["llm"]
    )
    assert list(message.default_for) == [pool_pb2.FORM_GRPC]
    assert list(message.default_for_paths) == ["/v1/completions"]
    assert [(v.name, v.weight, v.model_version) for v in message.variants] == [
        ("stable", 90, "1"),
        ("canary", 10, "2"),
    ]
    second = message.endpoints[1]
    assert (second.id, second.incarnation, second.joined_unix_ms) == ("r2", 7, 1234)
    assert message.endpoints[2].variant == "canary"
    assert message.slow_start.min_weight == pytest.approx(0.1)


def test_pickers_get_outlier_and_probe_settings() -> None:
    """The same numbers as Envoy's, whether replicas speak TLS or not; and how they speak it."""
    for tls in (None, {}, {"ca": "/ca.crt", "server_name": "triton.test"}):
        of = fleet(pool(outlier={"frozen_after": "7s"}, upstream_tls=tls))
        (data,) = picker_resources(View(of))["type.googleapis.com/tidegate.fleet.v1.Pool"].values()
        message = pool_pb2.Pool.FromString(data)
        assert message.outlier.consecutive_failures == of.pools[0].outlier.consecutive_failures
        assert message.outlier.max_ejection_percent == 50
        assert message.outlier.frozen_after_seconds == 7
        assert message.variants[0].probe_path == "/v2/models/llm-model/versions/1/ready"
        assert message.deep_health.repository
        assert message.HasField("upstream_tls") is (tls is not None)
        sent = {field.name: value for field, value in message.upstream_tls.ListFields()}
        assert sent == (tls or {})
        assert message.probe_interval_seconds == of.pools[0].health.interval


def test_pickers_get_no_pin_with_a_cookie() -> None:
    """They get no cookies, and the header alone is not the pin."""
    pins = {"headers": {"x-ab": "b"}, "cookies": {"ab": "b"}}
    variants = [{"name": "stable"}, {"name": "canary", "match": pins}]
    message = pool_pb2.Pool.FromString(
        picker_resources(View(fleet(pool(variants=variants))))[
            "type.googleapis.com/tidegate.fleet.v1.Pool"
        ]["llm"]
    )
    assert [dict(variant.headers) for variant in message.variants] == [{}, {}]


def test_zones_in_order_are_priorities() -> None:
    """The first listed zone is preferred, unlisted zones come last, and there are no gaps."""
    replicas = [
        endpoint(1, zone="c"),
        endpoint(2, zone="b"),
        endpoint(4, zone="other"),
        endpoint(5, zone="b"),
        endpoint(3, variant="canary", zone="other"),
    ]
    one = pool(endpoints=replicas, zones=["a", "b", "c"])
    for variant, expected in (("stable", {"b": 0, "c": 1, "other": 2}), ("canary", {"other": 0})):
        data = assignment(fleet(one).pools[0], ClusterRef("llm", variant, "http"))
        groups = endpoint_pb2.ClusterLoadAssignment.FromString(data).endpoints
        assert {group.locality.zone: group.priority for group in groups} == expected


def test_the_brake_is_one_category() -> None:
    """Envoy rejects an assignment with two."""
    for share, expected in ((0, []), (12.5, [125_000])):
        one = pool(drop_overload=share)
        data = assignment(fleet(one).pools[0], ClusterRef("llm", "stable", "http"))
        drops = endpoint_pb2.ClusterLoadAssignment.FromString(data).policy.drop_overloads
        assert [drop.drop_percentage.numerator for drop in drops] == expected


def test_the_brake_changes_every_host() -> None:
    """Envoy's workers apply a changed drop share only together with changed hosts."""
    seen = set()
    for share in (0, 5, 12.5):
        data = assignment(
            fleet(pool(drop_overload=share)).pools[0], ClusterRef("llm", "stable", "http")
        )
        hosts = endpoint_pb2.ClusterLoadAssignment.FromString(data).endpoints[0].lb_endpoints
        assert len({host.metadata.SerializeToString() for host in hosts}) == 1
        seen.add(hosts[0].metadata.SerializeToString())
    assert len(seen) == 3


def test_connections_to_one_replica_can_be_limited() -> None:
    """This is Envoy's only limit per host."""
    of = fleet(pool(circuit_breaker={"max_connections_per_endpoint": 7}))
    breakers = clusters(of)["llm/stable/http"].circuit_breakers
    assert [limit.max_connections.value for limit in breakers.per_host_thresholds] == [7, 7]
    usual = clusters(fleet())["llm/stable/http"].circuit_breakers
    assert not usual.per_host_thresholds


def test_the_listeners_buffer_can_be_set() -> None:
    """It bounds what one connection may hold in memory."""
    message, _, _ = _processor(fleet(listener={"buffer_bytes": 131_072}))
    assert message.per_connection_buffer_limit_bytes.value == 131_072


def test_few_connections_are_accepted_at_once() -> None:
    """Envoy hears that its heap is full before it reads all connections that waited."""
    message, _, _ = _processor(fleet())
    assert message.max_connections_to_accept_per_socket_event.value == 8


def test_headers_that_stall_are_bounded() -> None:
    """The time in which a client must send its headers is bounded; 0 = no limit."""
    for seconds in (10, 0):
        _, manager, _ = _processor(fleet(listener={"headers_timeout": seconds}))
        assert manager.request_headers_timeout.seconds == seconds


@pytest.mark.parametrize(
    ("routing", "sent"),
    [
        ({}, (64, "")),
        ({"block_tokens": 16, "tokenizer": "/models/llm.json"}, (16, "/models/llm.json")),
    ],
)
def test_pickers_get_the_token_settings(routing: dict, sent: tuple[int, str]) -> None:
    """A pool's tokenizer and the size of its token blocks are sent to the pickers."""
    of = fleet(pool(routing=routing))
    (data,) = picker_resources(View(of))["type.googleapis.com/tidegate.fleet.v1.Pool"].values()
    message = pool_pb2.Pool.FromString(data)
    assert (message.routing.block_tokens, message.routing.tokenizer) == sent


def test_all_pools_of_a_fleet_have_its_seed() -> None:
    """Workers, pickers and pools of one fleet hash alike; the view does not show the secret."""
    of = fleet(pool("a"), pool("b"))
    view = View(of, seed=7**22)
    pools = picker_resources(view)["type.googleapis.com/tidegate.fleet.v1.Pool"].values()
    assert [pool_pb2.Pool.FromString(data).seed for data in pools] == [7**22, 7**22]
    assert str(7**22) not in repr(view)
