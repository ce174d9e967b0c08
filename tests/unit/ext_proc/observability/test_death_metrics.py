"""Metrics of replicas' deaths."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from ext_proc.blame.deaths import DEATH_S, Who
from ext_proc.observability.counts import Scraped
from ext_proc.observability.replica_metrics import of_deaths
from support.streams import llm, router


def test_deaths_suspects_and_refusals_are_counted():
    """An alert needs one number for each."""
    request_router = router(llm())
    registry = CollectorRegistry()
    Scraped(registry, lambda: of_deaths(request_router.suspicion))
    deaths = request_router.suspicion.deaths
    for replica, at in (("r1", 0.0), ("r2", 10.0)):
        deaths.died(replica, Who(b"one".ljust(16)), at)
        deaths.gone(replica, at)
    deaths.died("r1", Who(b"two".ljust(16)), 0.0)
    deaths.sweep(10.0 + DEATH_S)
    request_router.suspicion.confined = 3
    sample = registry.get_sample_value
    assert sample("tidegate_picker_replica_deaths_total") == 2
    assert sample("tidegate_picker_suspects") == 2
    assert sample("tidegate_picker_deadly_requests") == 1
    assert sample("tidegate_picker_confined_requests_total") == 3
