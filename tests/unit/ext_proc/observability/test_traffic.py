"""Counts of requests by variant and endpoint."""

from __future__ import annotations

import pytest

from ext_proc.observability import traffic as module
from ext_proc.observability.traffic import Places, Resolved, TrafficCounts
from support.streams import llm, router
from tidegate_common.histogram import bucket_of

AT_R1 = "10.0.0.1:8080"
AT_CANARY = "10.0.0.9:8080"


def counts() -> TrafficCounts:
    """Return counts of a pool with three stable replicas and a canary."""
    return TrafficCounts(Places(router(llm()).registry).find)


def test_a_request_counts_for_its_variant_and_its_endpoint() -> None:
    """First byte and duration go to buckets; a caller's mistake is no failure of the endpoint."""
    made = counts()
    made.ended("llm/stable/http", AT_R1, "good", 0.1, 2.0)
    made.ended("llm/stable/http", AT_R1, "error", None, 0.2)
    made.ended("llm/stable/http", AT_R1, "client", 0.1, 0.2)
    stable = made.variants["llm", "stable"]
    assert (stable.requests, stable.failed) == (3, {"error": 1, "client": 1})
    assert stable.first_byte == {bucket_of(0.1): 2}
    assert stable.duration == {bucket_of(2.0): 1, bucket_of(0.2): 2}
    endpoint = made.endpoints["llm", "r1"]
    assert (endpoint.requests, endpoint.failed) == (3, 1)
    assert (endpoint.timed, endpoint.timed_s, endpoint.begun, endpoint.begun_s) == (1, 2.0, 1, 0.1)


def test_the_variant_is_that_of_the_replica_that_served() -> None:
    """A proxy of others names the pool only."""
    made = counts()
    made.ended("llm", AT_CANARY, "good", None, 1.0)
    assert made.variants["llm", "canary"].requests == 1


def test_an_answer_of_the_proxy_counts_for_the_clusters_variant() -> None:
    """Where no replica served, the cluster says which variant was meant."""
    made = counts()
    made.ended("llm/canary/http", None, "local", None, 1.0)
    made.ended("llm/invented/http", None, "local", None, 1.0)
    made.ended("llm/stable/http", "192.0.2.1:1", "unknown", None, 1.0)
    made.ended("elsewhere/stable/http", None, "local", None, 1.0)
    assert made.variants["llm", "canary"].failed == {"local": 1}
    assert set(made.variants) == {("llm", "canary"), ("llm", ""), ("llm", "stable")}
    assert not made.endpoints


def test_refusals_count_for_the_pool() -> None:
    """Before a variant is known."""
    made = counts()
    made.refused("llm", "saturated")
    made.refused("", "unknown-model")
    assert made.variants["llm", ""].failed == {"saturated": 1}
    assert made.variants["", ""].requests == 1


def test_series_and_pairs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the bounds nothing more is counted, and what is counted goes on."""
    monkeypatch.setattr(module, "MAX_VARIANTS", 1)
    monkeypatch.setattr(module, "MAX_ENDPOINTS", 1)
    monkeypatch.setattr(module, "MAX_PLACES", 1)
    made = counts()
    for address in (AT_R1, AT_CANARY, "10.0.0.2:8080"):
        made.ended("llm/stable/http", address, "good", None, 1.0)
    assert made.variants.keys() == {("llm", "stable")}
    assert made.variants["llm", "stable"].requests == 2
    assert made.endpoints.keys() == {("llm", "r1")}
    assert len(made._places) == 1
    made.picked("llm", "canary", 5, 1)
    made.refused("llm", "saturated")
    assert len(made.variants) == 1


def test_counts_begin_anew_where_gone_pools_fill_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet whose pools change for months must not stop being counted."""
    monkeypatch.setattr(module, "MAX_VARIANTS", 2)
    made = counts()
    made.ended("llm/stable/http", AT_R1, "good", None, 1.0)
    made.ended("llm/canary/http", AT_CANARY, "good", None, 1.0)
    made.set_pools({"llm": None})
    assert (made.generation, len(made.variants)) == (0, 2)
    made.set_pools({})
    assert (made.generation, len(made.variants)) == (1, 0)


def test_a_caller_that_gives_up_is_told_from_one_that_has_heard_enough() -> None:
    """Before the first byte it waited in vain; after it, it may have all that it wanted."""
    counts = TrafficCounts(lambda *_: Resolved("llm", "stable", "r1"))
    counts.ended("llm/stable/http", "10.0.0.1:80", "left", None, 6.0)
    counts.ended("llm/stable/http", "10.0.0.1:80", "left", 0.1, 6.0)
    assert counts.variants["llm", "stable"].failed == {"gave-up": 1, "left": 1}
    assert counts.endpoints["llm", "r1"].failed == 0
