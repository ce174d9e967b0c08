"""Log sinks: each entry goes to the picker that made the pick."""

from __future__ import annotations

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.extensions.access_loggers.grpc.v3 import als_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)

from support.fleets import fleet
from tidegate_api.names import CLUSTER_TYPE, ENDPOINT_TYPE, PICKER_CLUSTER
from xds_server.resources.listener import listener
from xds_server.snapshots.build import upstream_resources


def manager(*addresses: str) -> http_connection_manager_pb2.HttpConnectionManager:
    """Return the listener of a fleet with these pickers."""
    of = fleet(pickers={"addresses": addresses})
    message = listener_pb2.Listener.FromString(listener(of.listener, of.pickers))
    found = http_connection_manager_pb2.HttpConnectionManager()
    message.filter_chains[0].filters[0].typed_config.Unpack(found)
    return found


def router_of(*addresses: str) -> router_pb2.Router:
    """Return the router filter of a fleet with these pickers."""
    found = router_pb2.Router()
    manager(*addresses).http_filters[-1].typed_config.Unpack(found)
    return found


def sinks(*addresses: str) -> list[tuple[str, str, bool]]:
    """Return cluster, address to match and whether presence is enough, of each sink."""
    found = []
    for log in manager(*addresses).access_log:
        config = als_pb2.HttpGrpcAccessLogConfig()
        log.typed_config.Unpack(config)
        matcher = log.filter.metadata_filter.matcher
        assert log.filter.metadata_filter.HasField("match_if_key_not_found")
        assert not log.filter.metadata_filter.match_if_key_not_found.value
        assert (matcher.filter, matcher.path[0].key) == ("tidegate", "at")
        cluster = config.common_config.grpc_service.envoy_grpc.cluster_name
        found.append((cluster, matcher.value.string_match.exact, matcher.value.present_match))
    return found


def test_a_single_picker_needs_no_name() -> None:
    """It gets all entries with a pick, over the pickers' own cluster."""
    assert sinks("127.0.0.1:1") == [(PICKER_CLUSTER, "", True)]
    assert sinks() == []


def test_each_of_several_pickers_has_a_sink_and_a_cluster_of_its_own() -> None:
    """The pick's metadata names its picker, so no picker gets another picker's entries."""
    addresses = ("127.0.0.1:1", "127.0.0.1:2")
    wanted = [(f"tidegate-picker-log/{address}", address, False) for address in addresses]
    assert sinks(*addresses) == wanted
    resources = upstream_resources(fleet(pickers={"addresses": addresses}))
    for name, address, _ in wanted:
        cluster = cluster_pb2.Cluster.FromString(resources[CLUSTER_TYPE][name])
        held = endpoint_pb2.ClusterLoadAssignment.FromString(resources[ENDPOINT_TYPE][name])
        assert cluster.eds_cluster_config.service_name == held.cluster_name == name
        (host,) = held.endpoints[0].lb_endpoints
        assert host.endpoint.address.socket_address.port_value == int(address[-1])


def test_long_requests_write_entries_while_they_run() -> None:
    """A retried request is counted on its current replica before it ends."""
    assert manager("127.0.0.1:1").access_log_options.access_log_flush_interval.seconds == 1


def test_failed_attempts_have_sinks_of_their_own() -> None:
    """They have no metadata, so a header of the pick tells the pickers apart."""
    for addresses, wanted in (
        ((), []),
        (("127.0.0.1:1",), [(PICKER_CLUSTER, True, "")]),
        (
            ("127.0.0.1:1", "127.0.0.1:2"),
            [
                ("tidegate-picker-log/127.0.0.1:1", False, ";127.0.0.1:1"),
                ("tidegate-picker-log/127.0.0.1:2", False, ";127.0.0.1:2"),
            ],
        ),
    ):
        found = []
        for log in router_of(*addresses).upstream_log:
            config = als_pb2.HttpGrpcAccessLogConfig()
            log.typed_config.Unpack(config)
            assert config.common_config.log_name == "tidegate-attempts"
            assert list(config.additional_request_headers_to_log) == ["x-tidegate-ticket"]
            header = log.filter.and_filter.filters[0].header_filter.header
            assert header.name == "x-tidegate-ticket"
            cluster = config.common_config.grpc_service.envoy_grpc.cluster_name
            found.append((cluster, header.present_match, header.string_match.suffix))
        assert found == wanted


def test_good_attempts_write_nothing() -> None:
    """An entry costs as much as a part of the request, so only failures are worth one."""
    (log,) = router_of("127.0.0.1:1").upstream_log
    failed = log.filter.and_filter.filters[1].or_filter.filters
    flagged, answered, called = failed
    assert not flagged.response_flag_filter.flags, "any flag"
    assert answered.status_code_filter.comparison.value.default_value == 503
    assert list(called.grpc_status_filter.statuses) == [14]
