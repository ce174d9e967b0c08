"""Prometheus metrics and the debug pages of the picker.

Rules:

1. No label value is taken from a caller's text. Pools, variants and endpoints of the fleet are
   bounded by `MAX_SERIES` per metric; further ones count under ``other``.
2. The registry is injected; nothing is global.
3. On the hot path a metric costs a dictionary lookup and an addition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ext_proc.observability.counts import MAX_SERIES, Counts, Scraped, Timings, filled
from ext_proc.observability.pages import page_of
from ext_proc.observability.passes import Passes
from ext_proc.observability.traffic import ALL, MATCHED, Picks, TrafficCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


_SECONDS: Final = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0,
)  # fmt: skip


_QUEUE_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def _in_flight(counts: Mapping[str, int]) -> GaugeMetricFamily:
    rows = [((endpoint,), float(count)) for endpoint, count in sorted(counts.items())]
    rest = sum(count for _, count in rows[MAX_SERIES:])
    family = filled(
        GaugeMetricFamily(
            "tidegate_picker_in_flight",
            "Requests in flight that this picker sent to the endpoint.",
            labels=["endpoint"],
        ),
        rows,
    )
    if len(rows) > MAX_SERIES:
        family.add_metric(["other"], rest)
    return family


def _reused(tokens: Mapping[str, float]) -> CounterMetricFamily:
    return filled(
        CounterMetricFamily(
            "tidegate_picker_prefix_observed_tokens",
            "Prompt tokens that the endpoint reports as served from its cache, for all clients.",
            labels=["endpoint"],
        ),
        (((endpoint,), count) for endpoint, count in sorted(tokens.items())),
    )


class Metrics:
    """The picker's metrics.

    Args:
        registry: Registry of the metrics.
        in_flight: Returns the requests in flight by endpoint id.
        pools: Returns the number of known pools.
        index_blocks: Returns the number of blocks in the prefix index.
        reused: Returns the tokens that endpoints report as served from their caches.
        abandoned: Returns the number of open charges for abandoned work.
        require_pick: Requests without a pick are refused.
        traffic: Counts prompts and refusals for the control server; by default one of its own.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        in_flight: Callable[[], Mapping[str, int]] = dict,
        pools: Callable[[], int] = int,
        index_blocks: Callable[[], int] = int,
        reused: Callable[[], Mapping[str, float]] = dict,
        abandoned: Callable[[], int] = int,
        require_pick: bool = False,
        traffic: TrafficCounts | None = None,
    ) -> None:
        self.registry = registry
        self._traffic = TrafficCounts() if traffic is None else traffic
        Scraped(registry, lambda: (_in_flight(in_flight()), _reused(reused())))
        prompts = Counts(
            "tidegate_picker_prefix_prompt_tokens",
            "Estimated prompt tokens of requests that this picker sent to the endpoint.",
            ["endpoint"],
            registry,
        )
        predicted = Counts(
            "tidegate_picker_prefix_predicted_tokens",
            "Estimated prompt tokens that the endpoint was predicted to have cached.",
            ["endpoint"],
            registry,
        )
        picks = Counts(
            "tidegate_picker_picks",
            "Requests for which an endpoint was chosen.",
            ["pool", "variant", "reason"],
            registry,
        )
        self._refusals = Counts(
            "tidegate_picker_refusals",
            "Requests that were answered with an error.",
            ["pool", "reason"],
            registry,
        )
        self.passes = Passes(registry, required=require_pick)
        self._errors = Counts(
            "tidegate_picker_errors",
            "Streams that failed; the proxy continues by itself.",
            ["kind"],
            registry,
        )
        self.took = Timings(
            "tidegate_picker_exchange_seconds",
            "Time to a decision: thinking (parsing and choosing) and waiting for the body.",
            "part",
            ["thinking", "waiting"],
            _SECONDS,
            registry,
        ).spread
        self._queued = Timings(
            "tidegate_picker_queue_seconds",
            "Time that requests waited for a replica with room, by how it ended: picked, refused,"
            " or left by the caller.",
            "end",
            ["picked", "refused", "left"],
            _QUEUE_SECONDS,
            registry,
        ).spread
        blocks = Counts(
            "tidegate_picker_prompt_blocks",
            "Prompt blocks of picked requests: all, and those predicted to be cached.",
            ["part"],
            registry,
            known=[ALL, MATCHED],
        )
        tokens = Counts(
            "tidegate_picker_prompt_tokens",
            "Estimated prompt tokens of picked requests: all, and those predicted to be cached.",
            ["part"],
            registry,
            known=[ALL, MATCHED],
        )
        self.picked = Picks(
            picks.series,
            tokens.series,
            blocks.series,
            prompts.series,
            predicted.series,
            self._traffic,
        ).count
        """Counts a pick."""
        self.streams = 0
        """Number of open streams of the proxy."""
        Gauge(
            "tidegate_picker_open_streams", "Open streams of the proxy.", registry=registry
        ).set_function(lambda: self.streams)
        self._unreadable = Counts(
            "tidegate_picker_unreadable_bodies",
            "Bodies that could not be read as a request of their form.",
            [],
            registry,
            known=[()],
        )
        self._moved = Counts(
            "tidegate_picker_served_elsewhere",
            "Requests served by a replica other than the pick, by answers that the proxy shows.",
            [],
            registry,
            known=[()],
        )
        self._left_hung = Counts(
            "tidegate_picker_hung_requests",
            "Requests that left a replica that was found hung: for another one, or answered 503.",
            ["pool", "end"],
            registry,
        )
        self.connected = Gauge(
            "tidegate_picker_xds_connected",
            "1 while the control server's stream is open.",
            registry=registry,
        )
        Gauge("tidegate_picker_pools", "Known pools.", registry=registry).set_function(pools)
        Gauge(
            "tidegate_picker_abandoned",
            "Charges for work that replicas still do for callers who have left.",
            registry=registry,
        ).set_function(abandoned)
        Gauge(
            "tidegate_picker_index_blocks", "Blocks in the prefix index.", registry=registry
        ).set_function(index_blocks)

    def refused(self, reason: str, pool: str = "") -> None:
        """Count a refusal; ``pool`` is empty if it is not known."""
        self._refusals.add((pool, reason))
        self._traffic.refused(pool, reason)

    def passed(self, reason: str, pool: str = "") -> None:
        """Count a request without a pick; ``pool`` is empty if it is not known."""
        self.passes.add(reason, pool)

    def unreadable(self) -> None:
        """Count a body that could not be read."""
        self._unreadable.add(())

    def moved(self) -> None:
        """Count a request served by a replica other than the pick."""
        self._moved.add(())

    def left_hung(self, pool: str, *, moved: bool) -> None:
        """Count a request that left a hung replica: for another one, or answered."""
        self._left_hung.add((pool, "moved" if moved else "refused"))

    def failed(self, kind: str) -> None:
        """Count a stream that failed."""
        self._errors.add((kind,))

    def queued(self, end: str, waited_s: float, pool: str) -> None:
        """Observe the end of a wait for a replica: ``picked``, ``refused`` or ``left``."""
        self._queued.observe(end, waited_s)
        self._traffic.queued(pool, waited_s)


def debug_app(
    metrics: Metrics,
    state: Callable[[], Mapping[str, Any]],
    ready: Callable[[], bool],
    recent: Callable[[], Sequence[Mapping[str, object]]] = tuple,
    kept: Callable[[str], Sequence[Mapping[str, object]]] = lambda _: (),
) -> web.Application:
    """Return the application behind ``--metrics``.

    Its pages: ``/metrics``, ``/debug/state``, ``/debug/explain`` (sampled decisions, newest first;
    ``?pool=`` limits them to one pool, ``?kept=`` shows a kind of requests that is kept) and
    ``/healthz``.

    Args:
        metrics: The metrics to serve.
        state: Returns the state; its values must be JSON serializable.
        ready: Returns whether pools are known and the picker is not stopping.
        recent: Returns the sampled decisions, oldest first.
        kept: Returns the kept requests of a kind (``RequestRecords.describe``), newest first.
    """

    async def print_metrics(_: web.Request) -> web.Response:
        body = await page_of(metrics.registry)
        return web.Response(body=body, headers={"content-type": CONTENT_TYPE_LATEST})

    async def print_state(_: web.Request) -> web.Response:
        options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
        body = orjson.dumps(state(), default=str, option=options)
        return web.Response(body=body, content_type="application/json")

    async def print_explain(request: web.Request) -> web.Response:
        pool, kind = request.query.get("pool"), request.query.get("kept")
        found = reversed(recent()) if kind is None else kept(kind)
        shown = [each for each in found if pool is None or each.get("pool") == pool]
        body = orjson.dumps(shown, default=str, option=orjson.OPT_INDENT_2)
        return web.Response(body=body, content_type="application/json")

    async def print_health(_: web.Request) -> web.Response:
        up = ready()
        return web.Response(status=200 if up else 503, text="ready\n" if up else "not ready\n")

    app = web.Application(client_max_size=1024)
    app.router.add_get("/metrics", print_metrics)
    app.router.add_get("/debug/state", print_state)
    app.router.add_get("/debug/explain", print_explain)
    app.router.add_get("/healthz", print_health)
    return app
