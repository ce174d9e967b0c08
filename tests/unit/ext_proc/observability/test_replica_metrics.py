"""Estimates of replicas, as Prometheus reads them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from ext_proc.observability import replica_metrics
from ext_proc.observability.counts import Scraped
from ext_proc.observability.replica_metrics import (
    of_replicas,
    of_requests,
    of_scales,
    of_slots,
)
from ext_proc.observability.traffic import EndpointCounts
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.request import Features, Form, Request
from support.streams import llm, router

QUEUE = "tidegate_picker_replica_queue"
AGE = "tidegate_picker_replica_reading_age_seconds"
FIRST = "tidegate_picker_replica_first_byte_seconds"


def pages(request_router, now=10.0):
    registry = CollectorRegistry()
    Scraped(registry, lambda: of_replicas(request_router.registry.replicas(), now))
    return registry.get_sample_value


def test_what_is_believed_of_a_replica():
    """Our requests and other clients' add up; an unknown value has no sample."""
    request_router = router(llm(policy="round-robin"))
    for _ in range(3):
        request_router.decide(Request("llm", None, "http", Features(Form.GENERATE)), 9.0, 9.0)
    request_router.registry.observe("r1", [Reading(9.5, queued=4)])
    request_router.learner.answered("llm", EndpointKey("r1", 1), 0.25, None, 9.5)
    sample = pages(request_router)
    assert sample(QUEUE, {"endpoint": "r1"}) == 4
    assert sample(QUEUE, {"endpoint": "r2"}) == 1
    assert sample(AGE, {"endpoint": "r1"}) == 0.5
    assert sample(AGE, {"endpoint": "r2"}) is None
    assert round(sample(FIRST, {"endpoint": "r1", "pool": "llm"}), 6) == 0.25
    assert sample(FIRST, {"endpoint": "r2", "pool": "llm"}) is None


def test_requests_and_notes_of_replicas():
    """Times of requests that ended well only; a replica without any has no such sample."""
    registry, counts = CollectorRegistry(), {("llm", "r1"): EndpointCounts()}
    counts["llm", "r2"] = EndpointCounts()
    each = counts["llm", "r1"]
    each.requests, each.failed, each.timed, each.timed_s = 5, 1, 3, 1.5
    notes, checks = [("llm", "r1", "slow")], {("llm", False): 7}
    Scraped(registry, lambda: of_requests(notes, counts, checks))
    sample, name = registry.get_sample_value, "tidegate_picker_replica_"
    labels = {"pool": "llm", "endpoint": "r1"}
    assert sample(f"{name}note", {**labels, "note": "slow"}) == 1
    assert sample(f"{name}requests_total", labels) == 5
    assert sample(f"{name}failed_requests_total", labels) == 1
    assert sample(f"{name}request_seconds_count", labels) == 3
    assert sample(f"{name}request_seconds_sum", labels) == 1.5
    assert sample(f"{name}request_seconds_sum", {**labels, "endpoint": "r2"}) is None
    assert sample("tidegate_picker_token_checks_total", {"pool": "llm", "result": "differed"}) == 7


def test_series_are_bounded(monkeypatch):
    """The size of the page is bounded for a fleet of any size."""
    monkeypatch.setattr(replica_metrics, "MAX_SERIES", 2)
    sample = pages(router(llm()))
    shown = [sample(QUEUE, {"endpoint": f"r{number}"}) for number in (1, 2, 3)]
    assert shown.count(None) == 1


def test_what_was_learned_of_a_pools_text():
    """Bytes per token have a sample once an engine has counted some."""
    request_router = router(llm(policy="round-robin"))
    registry = CollectorRegistry()
    Scraped(registry, lambda: [of_scales(request_router.scales)])
    labels = {"pool": "llm", "model": ""}
    assert registry.get_sample_value("tidegate_picker_bytes_per_token", labels) is None
    request_router.registry.observe("r1", [Reading(0.0, "m", prompt_tokens=0.0, prompts=0.0)])
    features = Features(Form.GENERATE, prompt=b"x" * 1000)
    sent = 0
    for _ in range(60):
        made = request_router.decide(Request("llm", None, "http", features), 9.0, 9.0)
        request_router.confirmed(made.ticket.id, made.ticket.endpoint)
        sent += made.ticket.endpoint.id == "r1"
    request_router.registry.observe(
        "r1", [Reading(1.0, "m", prompt_tokens=500.0 * sent, prompts=sent)]
    )
    found = registry.get_sample_value("tidegate_picker_bytes_per_token", labels)
    assert 1.9 < found < 2.2


def test_slots_are_shown_for_autoscalers():
    """Slots with their source, their use, and how many replicas there should be."""
    request_router, registry = router(llm(policy="round-robin")), CollectorRegistry()
    waiting: dict[tuple[str, str], int] = {}
    pools = request_router.pools
    Scraped(registry, lambda: of_slots(request_router.limits, pools, waiting))
    sample = registry.get_sample_value
    assert sample("tidegate_picker_slot_utilisation", {"pool": "llm"}) is None
    request_router.registry.observe("r1", [Reading(1.0, "toy-llm", "1", running=1.0, slots=2.0)])
    model = next(iter(request_router.limits.of(EndpointKey("r1", 1))))[0]
    labels = {"pool": "llm", "endpoint": "r1", "model": model, "source": "declared"}
    assert sample("tidegate_picker_slots", labels) == 2
    assert sample("tidegate_picker_slot_utilisation", {"pool": "llm"}) == 0
    assert sample("tidegate_picker_replicas_needed", {"pool": "llm"}) == 1
    waiting |= {("llm", "toy-llm"): 2, ("llm", ""): 1, ("other", ""): 9}
    assert sample("tidegate_picker_replicas_needed", {"pool": "llm"}) == 3
    assert sample("tidegate_picker_waiting", {"pool": "llm"}) == 3
