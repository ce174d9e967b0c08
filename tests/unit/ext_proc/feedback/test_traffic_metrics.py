"""Metrics of the requests that ended."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from ext_proc.feedback.metrics import MAX_SPREADS, of_traffic
from ext_proc.observability.counts import MAX_SERIES, Scraped
from ext_proc.observability.traffic import Places, TrafficCounts, VariantCounts
from support.streams import llm, router

AT_R1 = "10.0.0.1:8080"


def test_requests_are_counted_by_outcome() -> None:
    """Refusals before a variant was drawn are another metric's."""
    counts = TrafficCounts(Places(router(llm()).registry).find)
    registry = CollectorRegistry()
    Scraped(registry, lambda: of_traffic(counts))
    for outcome in ("good", "good", "error", "client"):
        counts.ended("llm/stable/http", AT_R1, outcome, 0.1, 2.0)
    counts.refused("llm", "saturated")
    samples = {
        (each.labels["variant"], each.labels["outcome"]): each.value
        for family in registry.collect()
        for each in family.samples
        if each.name == "tidegate_picker_requests_total"
    }
    assert samples == {("stable", "good"): 2, ("stable", "error"): 1, ("stable", "client"): 1}


def test_samples_are_bounded() -> None:
    """However many variants there are."""
    counts = TrafficCounts()
    for number in range(2000):
        made = VariantCounts()
        made.requests, made.failed = 2, {"error": 1}
        counts.variants["llm", f"v{number}"] = made
    registry = CollectorRegistry()
    Scraped(registry, lambda: of_traffic(counts))
    requests, first, lasted = registry.collect()
    assert MAX_SERIES - 3 < len(requests.samples) <= MAX_SERIES
    for each in (first, lasted):
        assert len({sample.labels["variant"] for sample in each.samples}) == MAX_SPREADS
        assert len(each.samples) <= MAX_SERIES
