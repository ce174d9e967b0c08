"""Log sinks: each entry goes to the picker that made the pick."""

from __future__ import annotations

from typing import Any

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.extensions.access_loggers.grpc.v3 import als_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)
from hypothesis import given
from hypothesis import strategies as st

from support.envoy_messages import read_listener
from support.fleets import fleet
from tidegate_api.names import CLUSTER_TYPE, ENDPOINT_TYPE
from xds_server.fleet.view import LOG_SLOTS, log_slots
from xds_server.resources.listener import listener
from xds_server.snapshots.build import upstream_resources


def manager(slots: int = LOG_SLOTS) -> http_connection_manager_pb2.HttpConnectionManager:
    """Return the connection manager of a listener with this many log slots."""
    return read_listener(listener(fleet().listener, slots))[1][0]


def router_of(slots: int = LOG_SLOTS) -> router_pb2.Router:
    """Return the router filter of such a listener."""
    found = router_pb2.Router()
    manager(slots).http_filters[-1].typed_config.Unpack(found)
    return found


def settings_of(log: Any) -> Any:
    """Return the settings that log sinks have in common."""
    config = als_pb2.HttpGrpcAccessLogConfig()
    log.typed_config.Unpack(config)
    return config


def test_each_slot_has_a_sink_with_a_cluster_of_its_own() -> None:
    """The pick's metadata names its picker's slot, so no picker gets another's entries."""
    found = []
    for log in manager().access_log[:LOG_SLOTS]:
        matcher = log.filter.metadata_filter.matcher
        assert log.filter.metadata_filter.HasField("match_if_key_not_found")
        assert not log.filter.metadata_filter.match_if_key_not_found.value
        assert (matcher.filter, matcher.path[0].key) == ("tidegate", "slot")
        cluster = settings_of(log).common_config.grpc_service.envoy_grpc.cluster_name
        found.append((cluster, matcher.value.string_match.exact))
    assert found == [(f"tidegate-picker-log/{slot}", str(slot)) for slot in range(LOG_SLOTS)]


def test_the_cluster_of_a_slot_has_its_pickers_address() -> None:
    """A free slot has an assignment too: without one Envoy would wait for it."""
    addresses = ("127.0.0.1:1", "127.0.0.1:2")
    resources = upstream_resources(fleet(pickers={"addresses": addresses}))
    for slot, address in enumerate(log_slots(addresses)):
        name = f"tidegate-picker-log/{slot}"
        cluster = cluster_pb2.Cluster.FromString(resources[CLUSTER_TYPE][name])
        held = endpoint_pb2.ClusterLoadAssignment.FromString(resources[ENDPOINT_TYPE][name])
        assert cluster.eds_cluster_config.service_name == held.cluster_name == name
        ports = [
            host.endpoint.address.socket_address.port_value
            for host in held.endpoints[0].lb_endpoints
        ]
        assert ports == ([int(address[-1])] if address else [])


ADDRESSES = st.lists(st.integers(1, 60).map("10.0.0.{}:18001".format), unique=True)


@given(addresses=ADDRESSES)
def test_every_picker_has_one_slot(addresses: list[str]) -> None:
    """And there are eight slots for each eight pickers begun."""
    slots = log_slots([*addresses, *addresses])
    assert sorted(filter(None, slots)) == sorted(addresses)
    assert len(slots) % LOG_SLOTS == 0
    assert len(slots) - LOG_SLOTS < max(1, len(addresses))


@given(addresses=ADDRESSES)
def test_a_picker_that_comes_moves_none(addresses: list[str]) -> None:
    """Entries that are on their way still find the others."""
    before, after = log_slots(addresses[:-1]), log_slots(addresses)
    assert all(after[slot] == address for slot, address in enumerate(before) if address)


def test_long_requests_write_entries_while_they_run() -> None:
    """A retried request is counted on its current replica before it ends."""
    assert manager().access_log_options.access_log_flush_interval.seconds == 1


def test_failed_attempts_have_sinks_of_their_own() -> None:
    """They have no metadata, so a header of the pick tells the pickers apart."""
    found = []
    for log in router_of().upstream_log:
        config = settings_of(log)
        assert config.common_config.log_name == "tidegate-attempts"
        assert list(config.additional_request_headers_to_log) == ["x-tidegate-ticket"]
        header = log.filter.and_filter.filters[0].header_filter.header
        assert header.name == "x-tidegate-ticket"
        cluster = config.common_config.grpc_service.envoy_grpc.cluster_name
        found.append((cluster, header.string_match.suffix))
    assert found == [(f"tidegate-picker-log/{slot}", f";{slot}") for slot in range(LOG_SLOTS)]


def test_good_attempts_write_nothing() -> None:
    """An entry costs as much as a part of the request, so only failures are worth one."""
    (log,) = router_of(1).upstream_log
    failed = log.filter.and_filter.filters[1].or_filter.filters
    flagged, declined, missing, called = failed
    assert not flagged.response_flag_filter.flags, "any flag"
    answered = [
        each.status_code_filter.comparison.value.default_value for each in (declined, missing)
    ]
    assert answered == [503, 404]
    assert list(called.grpc_status_filter.statuses) == [14, 5]


def test_entries_of_requests_tell_the_first_byte_of_the_body() -> None:
    """The field of Envoy's own is the time of the headers, which some servers send at once."""
    for log in manager().access_log[:LOG_SLOTS]:
        tag, _ = settings_of(log).common_config.custom_tags
        assert (tag.tag, tag.value) == (
            "first-body",
            "%COMMON_DURATION(US_TX_BEG:US_RX_BODY_BEG:us)%;%DURATION%",
        )
