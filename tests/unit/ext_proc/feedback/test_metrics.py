"""Metrics of conditions."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from ext_proc.feedback import metrics as module
from ext_proc.feedback.fold import Feedback
from ext_proc.feedback.metrics import FeedbackMetrics
from support.streams import llm, replicas, router


def _page(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "tidegate_picker_replica_condition"
    }


def test_a_condition_names_its_replica(monkeypatch) -> None:
    """An alert must say which one; replicas that are well have no series, and all are bounded."""
    made = router(llm(endpoints=replicas(4)))
    registry = CollectorRegistry()
    FeedbackMetrics(registry, Feedback(made, picker="p", life="x-"), made.conditions)
    assert _page(registry) == {}
    keys = [each.key for each in made.pools["llm"].endpoints]
    for _ in range(2):
        made.conditions.probed("llm", keys[2], ready=False)
    assert _page(registry) == {("llm", "r3", "not-ready"): 1.0}
    for key in keys * 2:
        made.conditions.probed("llm", key, ready=False)
    monkeypatch.setattr(module, "MAX_SERIES", 2)
    assert len(_page(registry)) == 2
