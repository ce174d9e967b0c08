"""The control server's metrics."""

from prometheus_client import CollectorRegistry

from tidegate_api.names import CLUSTER_TYPE
from xds_server.observability import XdsMetrics


def test_every_metric_lands_in_the_given_registry() -> None:
    """Nothing is registered globally, and each call moves its own series."""
    registry = CollectorRegistry()
    metrics = XdsMetrics(registry)
    metrics.stream_opened("envoy", "delta")
    metrics.stream_closed("envoy", "delta")
    metrics.pushed(CLUSTER_TYPE)
    metrics.acked(CLUSTER_TYPE, 0.01)
    metrics.nacked(CLUSTER_TYPE)
    metrics.resources("envoy", CLUSTER_TYPE, 7)
    metrics.published("done", 0.2)
    metrics.set_revision(3)
    expected = {
        ("streams", ("audience", "envoy"), ("protocol", "delta")): 0,
        ("pushes_total", ("type", "CDS")): 1,
        ("ack_seconds_count", ("type", "CDS")): 1,
        ("nacks_total", ("type", "CDS")): 1,
        ("resources", ("audience", "envoy"), ("type", "CDS")): 7,
        ("publication_seconds_sum", ("state", "done")): 0.2,
        ("revision",): 3,
    }
    for (name, *labels), value in expected.items():
        assert registry.get_sample_value(f"tidegate_xds_{name}", dict(labels)) == value  # type: ignore[arg-type] # pairs by construction


def test_foreign_types_share_one_label() -> None:
    """The number of labels is bounded whatever types a client requests."""
    registry = CollectorRegistry()
    XdsMetrics(registry).pushed("type/any")
    assert registry.get_sample_value("tidegate_xds_pushes_total", {"type": "other"}) == 1
