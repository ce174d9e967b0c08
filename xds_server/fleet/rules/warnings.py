"""What is allowed in a fleet and probably not meant, in sentences for operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_api.pools import ENVOY_POLICY
from xds_server.fleet.rules.bodies import grpc_pools, serve_several
from xds_server.fleet.view import defaults_of, speaks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xds_server.fleet.model.fleet import Fleet, PoolSpec


def warnings(fleet: Fleet) -> list[str]:
    """Return one sentence per doubt and per setting that gives something up, as pools stand."""
    return [*_doubts(fleet), *_given_up(fleet)]


def _given_up(fleet: Fleet) -> Iterator[str]:
    """Yield what the settings give up that are not the defaults."""
    several, default = serve_several(grpc_pools(fleet)), defaults_of(fleet).grpc
    for pool in fleet.pools:
        if pool.routing.first_message == "none" and speaks(pool, "grpc"):
            own = serve_several([pool]) or (several and pool.name == default)
            if own:
                yield (
                    f"pool {pool.name} has `first_message: none`: of its several models a gRPC"
                    " stream may reach a replica that lacks the one it asks for (unknown model),"
                    " unless metadata names the model"
                )
        if pool.routing.policy != ENVOY_POLICY:
            yield from _unread(pool)


def _unread(pool: PoolSpec) -> Iterator[str]:
    routing = pool.routing
    if routing.body == "none":
        yield (
            f"pool {pool.name} has `body: none`: its prompts, sequences and adapters are not seen,"
            " but where headers name them, and neither are requests that kill replicas"
        )
    if routing.body == "peek" and "peek_bytes" in routing.model_fields_set:
        yield (
            f"pool {pool.name} has `peek_bytes: {routing.peek_bytes}`: of longer bodies only that"
            " part is seen, and they are sent to one replica, without a retry"
        )


def _doubts(fleet: Fleet) -> list[str]:
    return [
        f"pool {pool.name} has paths of its own and no `health.path`: if its replicas are engines"
        " without Triton's API (vLLM, SGLang), write `health: {path: /health}`; until then only"
        " pickers see whether they are ready, and Envoy sees whether they answer"
        for pool in fleet.pools
        if pool.match.paths and pool.health.path is None
    ]
