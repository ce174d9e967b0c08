"""All sources of a picker together."""

from __future__ import annotations

import pytest
import structlog
from prometheus_client import CollectorRegistry

from ext_proc.routing.state.candidates import FRESH_S
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.settings import CustomMetric
from ext_proc.telemetry.configs import ModelConfig
from ext_proc.telemetry.hub import COMPLAIN_S, SILENT_AFTER, Hub
from ext_proc.telemetry.news import GPU, PAGE, PUSH, PushEnded, Restarted, ScrapeFailed
from tidegate_api.names import LOAD_HEADER


class Router:
    """Records the calls that it receives."""

    def __init__(self):
        self.calls = []

    def observe(self, endpoint, readings):
        self.calls.append(("observe", endpoint, tuple(readings)))

    def silent(self, endpoint):
        self.calls.append(("silent", endpoint))

    def restarted(self, endpoint, unix_now):
        self.calls.append(("restarted", endpoint, unix_now))

    def in_flight(self):
        return {}


class Made:
    """A hub over two replicas with a stopped clock."""

    def __init__(self):
        self.now = 100.0
        self.gone = []
        self.router = Router()
        self.registry = CollectorRegistry()
        self.hub = Hub(
            self.router,
            self.registry,
            interval_s=0.25,
            on_gone=lambda *what: self.gone.append(what),
            clock=lambda: self.now,
            wall_clock=lambda: 7.0,
        )
        endpoints = tuple(
            Endpoint(
                EndpointKey(name, 1),
                "stable",
                f"127.0.0.1:{port}",
                None,
                f"http://127.0.0.1:{port}/metrics",
                gpu_metrics_url="http://127.0.0.1:9/metrics",
                gpus=frozenset({name}),
            )
            for name, port in (("a", 1), ("b", 2))
        )
        pool = Pool(
            "p",
            variants=(Variant("stable", 1),),
            endpoints=endpoints,
            custom_metrics=(CustomMetric("queued", "q"),),
        )
        self.hub.set_pools({"p": pool})

    def stale(self):
        self.hub.check()
        return self.registry.get_sample_value("tidegate_picker_telemetry_stale_endpoints")


@pytest.fixture
async def made():
    return Made()


async def test_sources_are_merged_for_the_router(made):
    """The router receives the merged readings of all sources."""
    made.hub._observe("a", PAGE, (Reading(100.0, "m", "1", queued=1, kv_used=0.5),), 100.0)
    made.hub._observe("a", GPU, (Reading(100.0, gpu_used=0.25),), 100.0)
    made.hub._observe("a", PUSH, (Reading(100.0, "m", "1", queued=2),), 100.1)
    _, endpoint, readings = made.router.calls[-1]
    assert endpoint == "a"
    by_model = {each.model: each for each in readings}
    assert by_model["m"] == Reading(100.0, "m", "1", queued=2, kv_used=0.5)
    assert by_model[None].gpu_used == 0.25
    assert set(made.hub.state()["ages_s"]["a"]) == {PAGE, GPU, PUSH}


async def test_staleness_is_counted_and_blindness_said_once(made):
    """Stale endpoints are counted; that all are stale is logged once, and so is its end."""
    made.hub._observe("a", PAGE, (Reading(100.0, "m"),), 100.0)
    assert made.stale() == 1
    with structlog.testing.capture_logs() as logs:
        made.now += FRESH_S + 0.1
        assert made.stale() == 2
        assert made.stale() == 2
        made.hub._observe("b", PAGE, (Reading(made.now, "m"),), made.now)
        assert made.stale() == 1
    assert [line["event"] for line in logs] == ["telemetry_lost", "telemetry_back"]
    assert made.registry.get_sample_value("tidegate_picker_telemetry_endpoints") == 2


async def test_silent_only_where_no_source_tells(made):
    """A failing page is not silence while the replica's reporter pushes."""
    made.hub.take(ScrapeFailed("a", SILENT_AFTER - 1))
    assert made.router.calls == []
    made.hub._observe("a", PUSH, (), made.now)
    made.hub.take(ScrapeFailed("a", SILENT_AFTER))
    assert ("silent", "a") not in made.router.calls
    made.hub.take(PushEnded("a"))
    made.hub.take(ScrapeFailed("a", SILENT_AFTER))
    assert made.router.calls[-1] == ("silent", "a")


async def test_a_replica_that_restarts_or_cannot_be_read_is_reported_gone(made):
    """Either confirms that it died of what it was sent."""
    made.hub.take(ScrapeFailed("a", SILENT_AFTER - 1))
    assert not made.gone
    made.hub.take(ScrapeFailed("a", SILENT_AFTER))
    made.hub.take(Restarted("b"))
    assert made.gone == [("a", 100.0), ("b", 100.0)]


async def test_a_restart_forgets_what_all_sources_said(made):
    """Readings of the old process are dropped."""
    made.hub._observe("a", PUSH, (Reading(100.0, "m", kv_used=0.5),), 100.0)
    made.hub.take(Restarted("a"))
    assert made.router.calls[-1] == ("restarted", "a", 7.0)
    made.hub._observe("a", PAGE, (Reading(100.0, "m"),), 100.0)
    assert made.router.calls[-1] == ("observe", "a", (Reading(100.0, "m"),))


async def test_strangers_are_passed_over(made):
    """A reporter for an endpoint outside the fleet is neither expected nor stale."""
    made.hub._observe("stranger", PUSH, (Reading(100.0),), 100.0)
    assert made.stale() == 2
    assert "stranger" not in made.hub.state()["ages_s"]


async def test_what_is_read_is_what_the_fleet_says(made):
    """Pages, GPU pages and declared series are those of the pools."""
    state = made.hub.state()
    assert set(state["pages"]) == set(state["gpu_pages"]) == {"a", "b"}
    assert made.hub._scraper._targets["a"].vocabulary.declared == (CustomMetric("queued", "q"),)
    assert made.hub._gpus._targets["b"].vocabulary.gpus == {"b"}
    made.hub.set_pools({})
    assert made.hub.state()["pages"] == {}


async def test_pages_that_others_read_are_not_read(made):
    """They are read again when they are left no longer; only a worker that leads reads any."""
    made.hub.leave(frozenset({("a", PAGE), ("b", GPU), ("stranger", PAGE)}))
    state = made.hub.state()
    assert (set(state["pages"]), set(state["gpu_pages"])) == ({"b"}, {"a"})
    made.hub.lead(leading=False)
    made.hub.leave(frozenset())
    assert made.hub.state()["pages"] == {}
    made.hub.lead(leading=True)
    assert set(made.hub.state()["pages"]) == {"a", "b"}


REPORT = ((LOAD_HEADER, "TEXT named_metrics.queue_size=3"),)


async def test_a_load_report_counts_where_no_other_source_tells(made):
    """Besides a page, which has values per model, it would count requests twice."""
    made.hub.reported("a", REPORT)
    assert made.router.calls == [("observe", "a", (Reading(100.0, queued=3.0),))]
    made.hub._observe("a", PAGE, (Reading(100.0, "m", queued=3),), 100.0)
    made.router.calls.clear()
    made.hub.reported("a", REPORT)
    assert made.router.calls == []
    made.now += FRESH_S + 1
    made.hub.reported("a", REPORT)
    ((_, _, readings),) = made.router.calls
    assert readings == (Reading(made.now, queued=3.0),)


async def test_a_load_report_of_nonsense_is_counted(made):
    """It has no other effect."""
    made.hub.reported("a", ((LOAD_HEADER, "JSON {"),))
    assert made.router.calls == []
    name = "tidegate_picker_telemetry_load_reports_total"
    assert made.registry.get_sample_value(name, {"outcome": "unreadable"}) == 1


def test_decoupled_models_are_read_so():
    """What replicas tell of their models reaches the reader of pages, beside declared series."""
    made = Made()
    made.hub._configs._known["a"] = {
        "m": ModelConfig(decoupled=True),
        "n": ModelConfig(decoupled=False, slots=2),
    }
    made.hub._set_targets()
    vocabulary = made.hub._scraper._targets["a"].vocabulary
    assert (vocabulary.decoupled, vocabulary.slots) == ({"m"}, {"n": 2})
    assert vocabulary.declared == (CustomMetric("queued", "q"),)
    assert made.hub._scraper._targets["b"].vocabulary.decoupled == frozenset()


async def test_a_page_that_is_not_read_is_logged_and_its_return(made):
    """Once in a minute for each replica, however often it comes and goes; one failure is none."""
    with structlog.testing.capture_logs() as logs:
        for _ in range(5):
            for failures in range(1, 5):
                made.hub._not_read("a", failures, "refused")
            made.hub._read("a", (Reading(made.now, "m"),))
            made.now += 1.0
        made.hub._not_read("b", SILENT_AFTER - 1, "refused")
    assert [(line["event"], line["replica"]) for line in logs] == [
        ("page_not_read", "a"),
        ("page_read_again", "a"),
    ]
    assert (logs[0]["url"], logs[0]["reason"]) == ("http://127.0.0.1:1/metrics", "refused")
    made.now += COMPLAIN_S
    with structlog.testing.capture_logs() as logs:
        made.hub._not_read("a", SILENT_AFTER, "refused")
    assert len(logs) == 1
    made.hub.set_pools({})
    assert not made.hub._unread
    assert not made.hub._complained


async def test_a_page_that_is_lost_again_within_a_minute_is_logged_after_it(made):
    """Otherwise the last line would say that it is read, however long it is not."""
    made.hub._not_read("a", SILENT_AFTER, "refused")
    made.hub._read("a", (Reading(made.now, "m"),))
    begun = made.now
    with structlog.testing.capture_logs() as logs:
        for failures in range(1, 200):
            made.now = begun + failures
            made.hub._not_read("a", failures, "refused")
            assert [line["event"] for line in logs] == ["page_not_read"] * (failures >= COMPLAIN_S)
