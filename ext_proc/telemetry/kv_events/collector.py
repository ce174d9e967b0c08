"""Follows the KV events of all endpoints whose pools name them, and updates the prefix index.

Rules:

1. There is one subscriber per engine. An endpoint starts anew if its events, its pool's block size
   or its model change. An endpoint that no pool names any longer is no longer followed.
2. An endpoint is complete while all its engines are.
3. Without the extra ``tidegate[kv-events]`` nothing is followed; this is logged once, with the fix.
4. A complete endpoint whose events never match the requests sent to it (``engine_reports`` rule 2)
   is logged when this is detected and when it ends.
5. The state of an endpoint: *exact*, *unconfirmed* (rule 4), *waiting* (an engine has published
   nothing since it started: it may be idle) or *gaps* (batches are missing). Gaps and unconfirmed
   events of ``TOLD_AFTER_S`` are told to operators: replays close most gaps within a second.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ext_proc.routing.cache.index_events import CacheEvent, Reporting
from ext_proc.telemetry.kv_events.translate import Translator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client import CollectorRegistry

    from ext_proc.routing.cache.prefix_index import PrefixIndex
    from ext_proc.routing.values.pool import EndpointKey, KvEvents, Pool
    from ext_proc.telemetry.kv_events.follower import Follower
    from ext_proc.telemetry.kv_events.subscribe import Subscriber

CHECK_EVERY_S: Final = 1.0
TOLD_AFTER_S: Final = 5.0
EXACT: Final = "exact"
UNCONFIRMED: Final = "unconfirmed"
WAITING: Final = "waiting"
GAPS: Final = "gaps"
_WORDS: Final = {
    GAPS: "batches of its KV events are missing, so its cache is guessed",
    UNCONFIRMED: "its KV events never fit the prompts that it is sent, so its cache is guessed",
}

_log = structlog.stdlib.get_logger("ext_proc.telemetry")


class Sink(Protocol):
    """The part of the router that KV events use."""

    index: PrefixIndex

    def cached(self, event: CacheEvent, /) -> None:
        """Apply a change of an engine's cache."""


class _Wanted(NamedTuple):
    """How an endpoint's events are interpreted."""

    events: KvEvents
    block_tokens: int
    models: frozenset[str]
    seed: int


class _Engine(NamedTuple):
    follower: Follower
    subscriber: Subscriber
    task: asyncio.Task[None]


class _Endpoint(NamedTuple):
    wanted: _Wanted
    engines: list[_Engine]


class KvCollector(Collector):
    """Subscribers of all engines.

    Args:
        sink: Receives the changes of caches.
        registry: Registry of the ``tidegate_picker_kv_*`` metrics.
    """

    def __init__(self, sink: Sink, registry: CollectorRegistry) -> None:
        self._sink = sink
        self._wanted: dict[EndpointKey, _Wanted] = {}
        self._followed: dict[EndpointKey, _Endpoint] = {}
        self._ended: Counter[str] = Counter()
        """Counts of engines that are no longer followed."""
        self._unconfirmed: frozenset[EndpointKey] = frozenset()
        self._troubled: dict[EndpointKey, tuple[str, int]] = {}
        """Endpoints with gaps or unconfirmed events: the state, and checks since it began."""
        self._running = False
        self._unavailable = False
        self._context: Any = None
        self._turns = asyncio.Lock()
        """Of the engines' replays."""
        registry.register(self)

    def set_pools(self, pools: Mapping[str, Pool]) -> None:
        """Follow exactly the engines of these pools."""
        wanted: dict[EndpointKey, _Wanted] = {}
        for _, pool in sorted(pools.items()):
            for endpoint in pool.endpoints:
                events = endpoint.kv_events
                if events is not None and (events.model in pool.models or not pool.models):
                    each = _Wanted(events, pool.block_tokens, pool.models, pool.seed)
                    wanted.setdefault(endpoint.key, each)
        self._wanted = wanted
        if self._running:
            self._reconcile()

    async def run(self) -> None:
        """Follow until cancelled."""
        self._running = True
        self._reconcile()
        try:
            while True:
                await asyncio.sleep(CHECK_EVERY_S)
                self.check()
        finally:
            self._running = False
            tasks = [each.task for known in self._followed.values() for each in known.engines]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._followed.clear()
            if self._context is not None:
                self._context.destroy(linger=0)
                self._context = None

    def notes(self) -> Iterator[tuple[EndpointKey, str]]:
        """Yield the endpoints whose caches have long been guessed, and why (rule 5)."""
        for key, (state, checks) in self._troubled.items():
            if checks * CHECK_EVERY_S > TOLD_AFTER_S:
                yield key, _WORDS[state]

    def _state(self, key: EndpointKey, known: _Endpoint) -> str:
        if all(each.follower.complete for each in known.engines):
            return EXACT if self._sink.index.is_exact(key) else UNCONFIRMED
        unfinished = [each.follower for each in known.engines if not each.follower.complete]
        return WAITING if all(each.waits for each in unfinished) else GAPS

    def check(self) -> None:
        """Log the endpoints whose events never match the requests sent to them."""
        if not self._followed and not self._unconfirmed:
            return
        states = {key: self._state(key, known) for key, known in self._followed.items()}
        before, self._troubled = self._troubled, {}
        for key, state in states.items():
            if state in _WORDS:
                was, checks = before.get(key, (state, 0))
                self._troubled[key] = state, checks + 1 if was == state else 1
        unconfirmed = frozenset(key for key, state in states.items() if state == UNCONFIRMED)
        for key in unconfirmed - self._unconfirmed:
            engine = self._followed[key].engines[0].follower
            _log.warning(
                "kv_events_never_confirm",
                endpoint=key.id,
                engine_block_size=engine.other_size or self._followed[key].wanted.block_tokens,
                block_tokens=self._followed[key].wanted.block_tokens,
                fix="routing.block_tokens, routing.tokenizer or kv_events.model do not fit the"
                " engine; until then its cache is guessed",
            )
        for key in self._unconfirmed - unconfirmed:
            _log.info("kv_events_confirm", endpoint=key.id)
        self._unconfirmed = unconfirmed

    def state(self) -> dict[str, Any]:
        """Return the followed engines, for debugging."""
        return {
            key.id: {
                "exact": self._sink.index.is_exact(key),
                "engines": [
                    {
                        "connected": each.subscriber.connected,
                        "complete": each.follower.complete,
                        "next": each.follower.missing,
                        "other_block_size": each.follower.other_size,
                        "last_error": each.follower.error,
                        "counts": dict(each.follower.counts),
                        "passed_over": dict(each.follower.passed()),
                    }
                    for each in known.engines
                ],
            }
            for key, known in self._followed.items()
        }

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Return the metrics (Prometheus)."""
        total = self._ended.copy()
        for known in self._followed.values():
            total.update(_counts(known))
        events = CounterMetricFamily(
            "tidegate_picker_kv_events",
            "Engines' KV events by kind, and blocks of them that were ignored, by reason.",
            labels=["what"],
        )
        for what, count in sorted(total.items()):
            events.add_metric([what], count)
        yield events
        states = Counter(self._state(key, known) for key, known in self._followed.items())
        endpoints = GaugeMetricFamily(
            "tidegate_picker_kv_endpoints",
            "Endpoints with KV events by state: exact (the cache is known), waiting (an engine has"
            " published nothing yet), gaps (events were missed), unconfirmed (events never fit the"
            " prompts that were sent).",
            labels=["state"],
        )
        for state in (EXACT, WAITING, GAPS, UNCONFIRMED):
            endpoints.add_metric([state], states[state])
        yield endpoints

    # --- Internals ------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        for key in [k for k, v in self._followed.items() if self._wanted.get(k) != v.wanted]:
            known = self._followed.pop(key)
            for each in known.engines:
                each.task.cancel()
            self._ended.update(_counts(known))
            self._sink.cached(Reporting(key, None))
        for key, wanted in self._wanted.items():
            if key not in self._followed and not self._unavailable:
                self._begin(key, wanted)

    def _begin(self, key: EndpointKey, wanted: _Wanted) -> None:
        try:
            import zmq  # noqa: PLC0415 - an extra

            from ext_proc.telemetry.kv_events.follower import Follower  # noqa: PLC0415 - it needs it
            from ext_proc.telemetry.kv_events.subscribe import (  # noqa: PLC0415 - the same
                EngineAddresses,
                Subscriber,
            )
        except ImportError as error:
            self._unavailable = True
            _log.error(
                "kv_events_not_available",
                reason=str(error),
                fix='pip install "tidegate[kv-events]"; until then caches are guessed',
            )
            return
        if self._context is None:
            self._context = zmq.Context()
        events = wanted.events
        followers: list[Follower] = []
        engines: list[_Engine] = []
        self._sink.cached(Reporting(key, complete=False))

        def completeness(_: bool) -> None:
            complete = len(followers) == events.engines and all(f.complete for f in followers)
            self._sink.cached(Reporting(key, complete=complete))

        for number in range(events.engines):
            translator = Translator(
                key,
                number,
                model=events.model,
                models=wanted.models,
                block_tokens=wanted.block_tokens,
                block=self._sink.index.reports.block,
                seed=wanted.seed,
            )
            follower = Follower(
                translator, self._sink.cached, completeness, can_replay=events.replay is not None
            )
            followers.append(follower)
            addresses = EngineAddresses(
                _on_port(events.address, number),
                None if events.replay is None else _on_port(events.replay, number),
                events.topic,
            )
            subscriber = Subscriber(self._context, addresses, follower, self._turns)
            task = asyncio.create_task(subscriber.run(), name=f"kv events {key.id}/{number}")
            engines.append(_Engine(follower, subscriber, task))
        self._followed[key] = _Endpoint(wanted, engines)


def _counts(known: _Endpoint) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in known.engines:
        total.update(each.follower.counts)
        total.update({f"passed_{why}": n for why, n in each.follower.passed().items()})
    return total


def _on_port(address: str, further: int) -> str:
    """Return the address of a further engine (vLLM adds its rank to the port)."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + further}"
