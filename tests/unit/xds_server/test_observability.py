"""The control server's metrics."""

from prometheus_client import CollectorRegistry

from tidegate_api.names import CLUSTER_TYPE
from xds_server.observability import MAX_VARIANTS, Assessment, OperationsNow, XdsMetrics


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


def test_the_verdict_is_asked_for_once_a_scrape() -> None:
    """Level and reasons are of one moment, and looking at each replica costs time."""
    registry = CollectorRegistry()
    metrics, asked = XdsMetrics(registry), []

    def judge() -> Assessment:
        asked.append(1)
        return Assessment(1, {"store": 1, "late": 0}, [("llm", "stable", 3, 2)])

    metrics.show_verdict(judge)
    found = {
        (each.name, *each.labels.values()): each.value
        for family in registry.collect()
        for each in family.samples
    }
    assert found["tidegate_xds_verdict",] == 1
    assert found["tidegate_xds_reasons", "store"] == 1
    assert found["tidegate_xds_reasons", "late"] == 0
    assert found["tidegate_xds_replicas", "llm", "stable"] == 3
    assert found["tidegate_xds_usable_replicas", "llm", "stable"] == 2
    assert len(asked) == 1


def test_variants_are_bounded() -> None:
    """A fleet of many pools makes no endless page."""
    registry = CollectorRegistry()
    many = [("llm", f"v{number}", 1, 1) for number in range(MAX_VARIANTS + 5)]
    XdsMetrics(registry).show_verdict(lambda: Assessment(variants=many))
    shown = [each for each in registry.collect() if each.name == "tidegate_xds_replicas"]
    assert len(shown[0].samples) == MAX_VARIANTS


def test_operations_on_models_are_shown() -> None:
    """A time that there is none of has no sample: 0 would say that one has just begun."""
    registry = CollectorRegistry()
    metrics = XdsMetrics(registry)
    prefix = "tidegate_xds_model_operation"
    assert registry.get_sample_value(f"{prefix}_age_seconds") is None
    assert registry.get_sample_value(f"{prefix}_still_seconds") is None
    now = OperationsNow(1, 2, 60.0, 3.0, {"llm": 4}, {("load", "failed"): 5})
    metrics.show_operations(lambda: now)
    found = {
        (each.name, *each.labels.values()): each.value
        for family in registry.collect()
        for each in family.samples
    }
    assert found[f"{prefix}s_total", "load", "failed"] == 5
    assert found["tidegate_xds_open_model_operations", "waiting"] == 1
    assert found["tidegate_xds_open_model_operations", "running"] == 2
    assert found[f"{prefix}_age_seconds",] == 60
    assert found[f"{prefix}_still_seconds",] == 3
    assert found["tidegate_xds_stuck_model_replicas", "llm"] == 4
