"""Alerts that end rollouts: queries of a Prometheus (`canary.alerts` of a pool).

Rules:

1. The queries of a pool are asked while its rollout runs, at most once in ``ASK_S``, all together.
2. An alert fires where its query returns a sample above 0, such as a rule's result, or
   `ALERTS{alertstate="firing"}`. What is told of it are the sample's labels, or the query.
3. Where a Prometheus does not answer, or refuses the query, it is not known whether the alert
   fires: that holds the step, and ends nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Self

import orjson
import yarl

from tidegate_common.upstream.client import OK, AskError, ReplicaClient
from xds_server.applications.canary.guards import PoolAlerts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from xds_server.applications.canary.controller import RolloutSpec
    from xds_server.control.fleet_control import Control
    from xds_server.fleet.model.canary import AlertQuery


ASK_S: Final = 5.0
ANSWER_S: Final = 3.0
AT_ONCE: Final = 16
MAX_BYTES: Final = 256 * 1024
MAX_TOLD: Final = 3
"""Most alerts of a query that are told."""
MAX_CHARS: Final = 120
_PATH: Final = "api/v1/query"


class CanaryAlerts:
    """See the module's rules; an asynchronous context manager.

    Args:
        control: The fleet in force.
        clock: Monotonic seconds.
    """

    def __init__(self, control: Control, clock: Callable[[], float]) -> None:
        self._control = control
        self._clock = clock
        self._client = ReplicaClient(AT_ONCE)
        self._known: dict[str, tuple[float, tuple[AlertQuery, ...], PoolAlerts]] = {}
        """By pool: when it was asked, by which queries, and what was found."""

    async def __aenter__(self) -> Self:
        """Open the connections' pool."""
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self._client.__aexit__()

    def __call__(self, pool: str) -> PoolAlerts:
        """Return what is known of a pool's alerts."""
        queries, known = self._queries(pool), self._known.get(pool)
        if known is not None and known[1] == queries:
            return known[2]
        return PoolAlerts(unknown=["not asked yet"] if queries else [])

    async def ask(self, specs: Sequence[RolloutSpec]) -> None:
        """Ask for the alerts of the pools of rollouts."""
        pools = {spec.pool for spec in specs}
        self._known = {pool: each for pool, each in self._known.items() if pool in pools}
        await asyncio.gather(*map(self._of_pool, sorted(pools)))

    def _queries(self, pool: str) -> tuple[AlertQuery, ...]:
        found = [each for each in self._control.written.pools if each.name == pool]
        return found[0].canary.alerts if found else ()

    async def _of_pool(self, pool: str) -> None:
        queries, known, now = self._queries(pool), self._known.get(pool), self._clock()
        if known is not None and known[1] == queries and now - known[0] < ASK_S:
            return
        firing: list[str] = []
        unknown: list[str] = []
        for query, answer in zip(
            queries, await asyncio.gather(*map(self._answer, queries)), strict=True
        ):
            if isinstance(answer, str):
                unknown.append(f"{query.url}: {answer}"[: 2 * MAX_CHARS])
            else:
                firing += [_told(each, query.query) for each in answer[:MAX_TOLD]]
        self._known[pool] = now, queries, PoolAlerts(firing, unknown)

    async def _answer(self, asked: AlertQuery) -> list[Mapping[str, Any]] | str:
        """Return the labels of what fires, or why that is not known."""
        try:
            url = (yarl.URL(asked.url) / _PATH).with_query(query=asked.query)
            async with self._client.turn(ANSWER_S) as turn:
                answer = await turn.http("GET", url, max_bytes=MAX_BYTES)
        except AskError as error:
            return error.fault.value
        except ValueError as error:  # such as a port above 65535
            return f"cannot be asked: {error}"
        return fires(answer.status, answer.body)


def fires(status: int, body: bytes) -> list[Mapping[str, Any]] | str:
    """Read the answer to a query: the labels of each sample above 0, or what is wrong.

    NaN, such as a ratio of requests where there are none, is not above 0.

    Source: https://prometheus.io/docs/prometheus/latest/querying/api/
    """
    try:
        told = orjson.loads(body)
        if status != OK or told["status"] != "success":
            return str(told["error"])
        data = told["data"]
        if data["resultType"] == "scalar":
            return [{}] if float(data["result"][1]) > 0.0 else []
        if data["resultType"] != "vector":
            return f"the query returns a {data['resultType']}; it must return a vector or a scalar"
        return [dict(each["metric"]) for each in data["result"] if float(each["value"][1]) > 0.0]
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, ValueError):
        return f"it answers {status}, and not as a Prometheus"


def _told(labels: Mapping[str, Any], query: str) -> str:
    """Return an alert in words: its name or the query, and its other labels."""
    rest = {name: value for name, value in labels.items() if name not in {"alertname", "__name__"}}
    name = str(labels.get("alertname") or query)
    said = ", ".join(f"{key}={value}" for key, value in rest.items())
    return (f"{name} ({said})" if said else name)[:MAX_CHARS]
