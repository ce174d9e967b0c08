"""How a route forwards: timeouts, retries, copies to a shadow.

Source: ``envoy/config/route/v3/route_components.proto``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from envoy.extensions.retry.host.previous_hosts.v3 import previous_hosts_pb2

from tidegate_api.pools import ENVOY_POLICY, MAX_REPEATS
from xds_server.resources.filters.matched_again import bound_unpicked, follow_picker
from xds_server.resources.filters.placed import choose_by_model
from xds_server.resources.fractions import fraction
from xds_server.resources.reads import allow_reads, repeat_known_ends
from xds_server.resources.routes.processing import process, without_picker

if TYPE_CHECKING:
    from xds_server.fleet.model.fleet import PoolSpec
    from xds_server.fleet.model.resilience import Shadow

_DRAWS: Final = 128
"""Most draws of a replica for one retry; a tried one is put back."""


def forward(route: Any, pool: PoolSpec, *, streaming: bool) -> None:
    """Set timeouts, retries, copies and what the picker is sent."""
    action = route.route
    action.timeout.FromNanoseconds(round(pool.timeouts.request * 1e9))
    action.idle_timeout.FromNanoseconds(round(pool.timeouts.idle * 1e9))
    retry = action.retry_policy
    # `reset` covers a replica that dies after it has read the request, which `reads` bounds; Envoy
    # never retries once a response has begun. A stream may contain sequences that the picker does
    # not see, so it is retried only if the replica cannot have read it.
    retry.retry_on = (
        "connect-failure,refused-stream"
        if streaming
        else "connect-failure,refused-stream,reset-before-request,reset,"
        "retriable-status-codes,unavailable"
    )
    repeat_known_ends(retry)
    if not streaming:
        retry.retriable_status_codes.append(503)
    if not streaming and pool.health.repository:
        _repeat_missing(route)
    fallbacks = pool.routing.fallbacks
    retry.num_retries.value = MAX_REPEATS if fallbacks else 1
    if not streaming:
        allow_reads(route, pool.routing.retry_read, max(1, fallbacks))
        retry.per_try_timeout.FromNanoseconds(round(pool.timeouts.first_answer * 1e9))
    # Each draw takes the one of two replicas that has fewer requests, so the busiest of three is
    # missed with a probability of 8/9: by 32 draws in 2.3 % of cases, by these in 3 of 10 million.
    retry.host_selection_retry_max_attempts = _DRAWS
    retry.retry_host_predicate.add(
        name="envoy.retry_host_predicates.previous_hosts"
    ).typed_config.Pack(previous_hosts_pb2.PreviousHostsPredicate())
    if not streaming and pool.shadow is not None:
        _mirrored(action, pool.shadow, pool)
    if not streaming:
        process(route, pool.routing, pool.routing.body)
        bound_unpicked(route)
        if len(pool.variants) > 1 and pool.routing.body == "peek":
            follow_picker(route)
    else:
        duplex = pool.routing.first_message == "duplex"
        process(route, pool.routing, "duplex" if duplex else "none")
    choose_by_model(route, pool)
    if pool.routing.policy == ENVOY_POLICY:
        without_picker(route)


def _repeat_missing(route: Any) -> None:
    """Name the answers that are repeated where the picker says so.

    ``retry_on`` does not say ``retriable-headers``: the picker does, by a header, for requests
    whose model another replica has. Clients' copies of that header are removed.
    """
    for name, value in ((":status", "404"), ("grpc-status", "5")):
        matcher = route.route.retry_policy.retriable_headers.add(name=name)
        matcher.string_match.exact = value


def _mirrored(action: Any, shadow: Shadow, pool: PoolSpec) -> None:
    """Mirror requests to the shadow variant, except those that go to this variant itself.

    Copies bypass Envoy's filters: no picker is involved, no ledger is charged, and Envoy's own load
    balancing chooses the replica.
    """
    cluster: str = action.cluster or action.weighted_clusters.clusters[0].name
    _, _, protocol = cluster.rpartition("/")
    target = f"{shadow.pool or pool.name}/{shadow.variant}/{protocol}"
    if action.cluster != target:
        mirror = action.request_mirror_policies.add(cluster=target)
        mirror.runtime_fraction.default_value.CopyFrom(fraction(shadow.percent))
