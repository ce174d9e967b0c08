"""Envoy's runtime layer of limits and slow-start settings (RTDS); weights have layers of their own.

For Envoy a changed cluster is a new one: it is warmed again, and its connection pools and host
statistics start empty. Settings with a runtime key are therefore constant in the cluster (the
defaults of the fleet's model), and this layer always contains all current values. Envoy gets the
layer before its first cluster and keeps it while the control server is unreachable. An Envoy that
never got it uses the defaults, so it is limited, not unlimited.

Keys are flat text: the ``/`` in a cluster's name has no special meaning in them.

Source: ``envoy/service/runtime/v3/rtds.proto``; "Runtime configuration" of Envoy's cluster
manager documentation for the keys of circuit breakers.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from envoy.service.runtime.v3 import rtds_pb2

from tidegate_api.names import RUNTIME_NAME
from xds_server.fleet.view import clusters_of
from xds_server.resources.edge.request_log import shares

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xds_server.fleet.model.fleet import Fleet, PoolSpec


_MAX_PATTERN: Final = 10_000.0
"""Size of the compiled regular expressions that Envoy accepts. The pattern of a few paths or model
names exceeds its default of 100; ours come from the fleet alone, whose size is bounded."""


def aggression_key(pool: str) -> str:
    """Return the runtime key of a pool's slow-start aggression."""
    return f"tidegate.slow_start.{pool}.aggression"


def runtime(
    fleet: Fleet, also: Fleet | None = None, unpicked: Mapping[str, int] = MappingProxyType({})
) -> bytes:
    """Return the serialized ``Runtime``.

    Args:
        fleet: The fleet whose values are in force.
        also: A fleet whose pools and clusters exist too; for common keys ``fleet`` takes
            precedence.
        unpicked: Most requests without a pick to each cluster, by its name; those of a cluster
            that is not named are bounded as all others.
    """
    values: dict[str, Any] = {
        "re2.max_program_size.error_level": _MAX_PATTERN,
        **shares(fleet.listener),
    }
    for pool in also.pools if also is not None else ():
        values.update(_values(pool, unpicked))
    for pool in fleet.pools:
        values.update(_values(pool, unpicked))
    message = rtds_pb2.Runtime(name=RUNTIME_NAME)
    message.layer.update(values)
    return message.SerializeToString(deterministic=True)  # type: ignore[no-any-return]  # untyped library


def _values(pool: PoolSpec, unpicked: Mapping[str, int]) -> dict[str, float]:
    breaker = pool.circuit_breaker
    values = {aggression_key(pool.name): pool.slow_start.aggression}
    for ref in clusters_of(pool):
        most = min(breaker.max_requests, unpicked.get(str(ref), breaker.max_requests))
        for priority, requests in (("default", breaker.max_requests), ("high", most)):
            prefix = f"circuit_breakers.{ref}.{priority}"
            values[f"{prefix}.max_connections"] = breaker.max_connections
            values[f"{prefix}.max_pending_requests"] = breaker.max_pending
            values[f"{prefix}.max_requests"] = requests
            values[f"{prefix}.retry_budget.budget_percent"] = breaker.retry_budget_percent
            values[f"{prefix}.retry_budget.min_retry_concurrency"] = breaker.min_retries
    return values
