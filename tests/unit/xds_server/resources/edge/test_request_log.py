"""Envoy's access log and tracing: sinks, shares, collectors."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.config.accesslog.v3 import accesslog_pb2
from envoy.config.cluster.v3 import cluster_pb2
from envoy.extensions.access_loggers.file.v3 import file_pb2
from envoy.extensions.access_loggers.stream.v3 import stream_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)
from envoy.service.runtime.v3 import rtds_pb2

from support.envoy_messages import read_listener
from support.fleets import fleet
from tidegate_api.names import CLUSTER_TYPE, LISTENER_TYPE, LOG_COLLECTOR_CLUSTER, RUNTIME_TYPE
from xds_server.fleet.load import FleetError, load_text
from xds_server.fleet.model.listener import AccessLogSpec, ListenerSpec, TracingSpec
from xds_server.fleet.view import View
from xds_server.resources.edge.request_log import (
    FIELDS,
    LOG_SHARE_KEY,
    TRACE_SHARE_KEY,
    collector_clusters,
    request_logs,
    shares,
    tracing,
)
from xds_server.snapshots.stages import plan

ADDRESS = "127.0.0.1:4317"
SECRET = ("authorization", "cookie", "session", "query", "x-api-key", ":path")


def spec(**log: Any) -> ListenerSpec:
    """Return a listener with an access log."""
    return ListenerSpec(access_log=AccessLogSpec(**log))


def test_each_place_has_a_sink() -> None:
    """Standard output, a file and a collector may stand together."""
    logs = request_logs(spec(stdout=True, file="/a.log", otlp=ADDRESS))
    names = [accesslog_pb2.AccessLog.FromString(each).name for each in logs]
    assert [each.rpartition(".")[2] for each in names] == ["stdout", "file", "open_telemetry"]
    assert request_logs(ListenerSpec()) == []


def test_each_process_writes_the_same_bytes() -> None:
    """Another control server that leads, or one that was restarted, sends no listener again."""
    stdout, file = map(
        accesslog_pb2.AccessLog.FromString, request_logs(spec(stdout=True, file="/a"))
    )
    for log, kind in ((stdout, stream_pb2.StdoutAccessLog), (file, file_pb2.FileAccessLog)):
        packed = log.typed_config.value
        assert kind.FromString(packed).SerializeToString(deterministic=True) == packed


def test_only_the_end_of_a_request_is_logged() -> None:
    """Envoy makes an entry each second for pickers, which would repeat long requests."""
    (log,) = request_logs(spec(stdout=True))
    ended, drawn = accesslog_pb2.AccessLog.FromString(log).filter.and_filter.filters
    assert list(ended.log_type_filter.types) == [6]  # DownstreamEnd
    assert drawn.runtime_filter.runtime_key == LOG_SHARE_KEY


def test_an_entry_has_nothing_that_a_tenant_wrote() -> None:
    """But the request's id, of bounded length."""
    for text in FIELDS.values():
        assert not any(word in text.lower() for word in SECRET)
    written = [text for text in FIELDS.values() if text.startswith("%REQ(")]
    assert written == ["%REQ(x-request-id):128%", "%REQ(:METHOD)%"]


def test_shares_are_runtime_values() -> None:
    """So that a change of them drains nothing; Envoy reads the two in different forms."""
    listener = spec(stdout=True, percent=12.5).model_copy(
        update={"tracing": TracingSpec(otlp=ADDRESS, percent=1)}
    )
    traced = {"numerator": 10_000, "denominator": "MILLION"}
    assert shares(listener) == {LOG_SHARE_KEY: 125_000.0, TRACE_SHARE_KEY: traced}
    assert shares(ListenerSpec()) == {}


@pytest.mark.parametrize(
    ("address", "kind"), [(ADDRESS, "STATIC"), ("otel.example:4317", "STRICT_DNS")]
)
def test_a_collector_has_a_cluster_for_grpc(address: str, kind: str) -> None:
    """By address, or by a name that Envoy resolves."""
    (data,) = collector_clusters(spec(otlp=address)).values()
    cluster = cluster_pb2.Cluster.FromString(data)
    assert cluster_pb2.Cluster.DiscoveryType.Name(cluster.type) == kind
    assert cluster.name == LOG_COLLECTOR_CLUSTER


def test_a_client_may_ask_for_a_trace() -> None:
    """With the share at 0 only traces that clients began go on."""
    listener = ListenerSpec(tracing=TracingSpec(otlp=ADDRESS, percent=0, service="edge"))
    data = tracing(listener)
    assert data is not None
    found = http_connection_manager_pb2.HttpConnectionManager.Tracing.FromString(data)
    assert (found.client_sampling.value, found.random_sampling.value) == (100, 0)
    assert tracing(ListenerSpec()) is None


def test_an_access_log_goes_somewhere() -> None:
    """An empty one is a mistake."""
    text = "listener: {access_log: {percent: 5}}\npools: [{name: a, endpoints: []}]\n"
    with pytest.raises(FleetError, match="set `stdout`, `file` or `otlp`"):
        load_text(text, "fleet")


def test_a_collector_goes_after_the_listener_that_names_it() -> None:
    """In each stage the cluster is there while any listener may log to it."""
    logged = fleet(listener={"access_log": {"otlp": ADDRESS}, "tracing": {"otlp": ADDRESS}})
    for before, after in ((View(logged), View(fleet())), (View(fleet()), View(logged))):
        for stage in plan(before, after):
            clusters = stage.snapshot.resources(CLUSTER_TYPE)
            for one in stage.snapshot.resources(LISTENER_TYPE).values():
                if read_listener(one.message)[1][0].HasField("tracing"):
                    assert LOG_COLLECTOR_CLUSTER in clusters
    runtime = plan(None, View(logged))[0].snapshot.resources(RUNTIME_TYPE)["tidegate"]
    assert TRACE_SHARE_KEY in rtds_pb2.Runtime.FromString(runtime.message).layer.fields
