"""What is allowed in a fleet and probably not meant, and what needs a picker: for operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_api.pools import ENVOY_POLICY
from xds_server.fleet.rules.bodies import (
    body_reads,
    grpc_pools,
    largest_body,
    largest_first_message,
    path_pools,
    picker_reads_compressed,
    serve_several,
)
from xds_server.fleet.view import defaults_of, speaks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


def picker_needs(fleet: Fleet) -> list[str]:
    """Return one sentence per kind of request that is refused where no picker answers."""
    if not fleet.pickers.fail_open:
        asking = [pool.name for pool in fleet.pools if pool.routing.policy != ENVOY_POLICY]
        if asking:
            return [f"`pickers.fail_open` is off: all requests of {_pools(asking)} need a picker"]
    reads = body_reads(fleet)
    found = []
    closed = [pool.name for pool in fleet.pools if pool.routing.without_picker == "closed"]
    if closed:
        found.append(f"`without_picker: closed`: all requests of {_pools(closed)} need a picker")
    sharing = grpc_pools(fleet)
    names = _pools([pool.name for pool in sharing])
    if reads.unary.without:
        found.append(
            f"gRPC calls of {names} need a picker where they are compressed or larger than"
            f" {largest_body(sharing)} bytes, unless a header names the model"
        )
    if reads.stream.without:
        found.append(
            f"gRPC streams of {names} need a picker where their first message is compressed or"
            f" larger than {largest_body(sharing)} bytes, unless metadata names the model"
        )
    elif reads.stream.before and reads.unary.without:
        held = largest_first_message(sharing)
        if picker_reads_compressed(fleet):
            found.append(
                f"gRPC streams of {names} need a picker where they are compressed, and are refused"
                f" where their first message is larger than {held} bytes, unless metadata names the"
                " model"
            )
        else:
            found.append(
                f"gRPC streams of {names} are refused, with or without a picker, where their first"
                f" message is compressed or larger than {held} bytes, unless metadata names the"
                " model; `first_message: duplex` in the default pool lets the picker read it"
            )
    for path, read in reads.paths:
        if read.without:
            pools = _pools([pool.name for pool in path_pools(fleet, path)])
            found.append(f"compressed requests to {path} of {pools} need a picker")
    return found


def _pools(names: Sequence[str]) -> str:
    return f"pool {names[0]}" if len(names) == 1 else f"the pools {', '.join(names)}"
