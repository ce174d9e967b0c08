"""Which bodies Envoy itself reads, because only they name the pool of a request.

Rules:

1. In some *forms* (unary gRPC, gRPC streams, each path of ``match.paths``) only the body names the
   pool. One pool alone in a form takes all its requests, so nothing is read.
2. Without a picker such a request goes to its default pool. Where every pool of the form has the
   same replicas in the same variants, any of them can answer, so nothing is read. Otherwise Envoy
   reads the model *without a pick*.
3. The picker reads no stream whose pool has not ``first_message: duplex``. Where a wrong pool is
   possible (rule 2), Envoy reads the first message *before* it asks the picker.
4. Replicas may lack some of several models, so Envoy reads the first message before it asks the
   picker, too, where the pools of gRPC serve several and the default pool's ``first_message`` is
   ``auto``. Compressed streams, which Envoy cannot read, are then sent through the picker.
5. A pool with ``policy: envoy`` is to cost no picker. In a form that such a pool shares, Envoy
   reads the model *before* it asks the picker; what it cannot read is left to the picker.
6. What is read does not depend on weights, limits or health: these change while clients are
   connected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tidegate_api.pools import ENVOY_POLICY
from xds_server.fleet.memo import ByIdentity
from xds_server.fleet.view import PROTOCOLS, address_of, defaults_of, speaks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tidegate_api.names import Protocol
    from xds_server.fleet.model.fleet import Fleet, PoolSpec


class BodyRead(NamedTuple):
    """When Envoy reads the model of a form's requests."""

    before: bool = False
    """Before it asks the picker."""
    without: bool = False
    """When it was given no pick."""


NEVER: Final = BodyRead()

FIRST_MESSAGE_BYTES: Final = 64 * 2**20
"""Most bytes that Envoy holds of a stream's first message to read its model, if no ``max_body`` is
larger. Before this was read, streams had no bound: it is far above what clients send."""


class BodyReads(NamedTuple):
    """What Envoy reads of each form."""

    unary: BodyRead
    """Unary gRPC calls that name a model."""
    stream: BodyRead
    """gRPC streams (ModelStreamInfer)."""
    paths: tuple[tuple[str, BodyRead], ...]
    """Paths of ``match.paths`` of which anything is read, sorted."""

    def of_path(self, path: str) -> BodyRead:
        """Return what is read of requests to ``path``."""
        return dict(self.paths).get(path, NEVER)


@ByIdentity
def body_reads(fleet: Fleet) -> BodyReads:
    """Return what Envoy reads; the module states the rules."""
    sharing = grpc_pools(fleet)
    alone, apart = _alone(sharing), _apart(sharing, "grpc")
    default = next((pool for pool in sharing if pool.name == defaults_of(fleet).grpc), None)
    first = "none" if default is None else default.routing.first_message
    duplex, auto = first == "duplex", first == "auto"
    found = {}
    for path in sorted({path for pool in fleet.pools for path in pool.match.paths}):
        pools = path_pools(fleet, path)
        read = BodyRead(_alone(pools), _apart(pools, "http"))
        if read != NEVER:
            found[path] = read
    return BodyReads(
        unary=BodyRead(alone, apart),
        stream=BodyRead(
            alone or (apart and not duplex) or (auto and serve_several(sharing)), apart and duplex
        ),
        paths=tuple(found.items()),
    )


def grpc_pools(fleet: Fleet) -> list[PoolSpec]:
    """Return the pools that share gRPC."""
    return [pool for pool in fleet.pools if speaks(pool, "grpc")]


def path_pools(fleet: Fleet, path: str) -> list[PoolSpec]:
    """Return the pools that share ``path``."""
    return [pool for pool in fleet.pools if path in pool.match.paths and speaks(pool, "http")]


def largest_body(pools: Iterable[PoolSpec]) -> int:
    """Return how many bytes of a body Envoy holds to read its model: the largest ``max_body``."""
    return max(pool.routing.max_body for pool in pools)


def largest_first_message(pools: Iterable[PoolSpec]) -> int:
    """Return how many bytes of a stream's first message Envoy holds to read its model."""
    return max(FIRST_MESSAGE_BYTES, largest_body(pools))


def picker_reads_compressed(fleet: Fleet) -> bool:
    """Return whether streams that Envoy cannot read go through the picker."""
    name = defaults_of(fleet).grpc
    default = next((pool for pool in fleet.pools if pool.name == name), None)
    return default is not None and through_picker(default, body_reads(fleet).stream)


def through_picker(pool: PoolSpec, read_at: BodyRead) -> bool:
    """Return whether the pool's picker reads the streams that Envoy cannot read."""
    routing = pool.routing
    return read_at.before and routing.first_message == "auto" and routing.policy != ENVOY_POLICY


def serve_several(pools: Iterable[PoolSpec]) -> bool:
    """Return whether the pools serve more than one model, as the fleet file names them."""
    return len({model for pool in pools for model in pool.match.models}) > 1


def _alone(sharing: Sequence[PoolSpec]) -> bool:
    """Return whether a pool without a picker shares the form with another pool."""
    return len(sharing) > 1 and any(pool.routing.policy == ENVOY_POLICY for pool in sharing)


def _apart(sharing: Sequence[PoolSpec], protocol: Protocol) -> bool:
    """Return whether the pools differ in their replicas, or in these replicas' variants."""
    if len(sharing) < 2:  # noqa: PLR2004 - none or one
        return False
    replicas = [_replicas(pool)[protocol] for pool in sharing]
    return any(one != replicas[0] for one in replicas)


@ByIdentity
def _replicas(pool: PoolSpec) -> dict[Protocol, frozenset[tuple[str, str | None]]]:
    """Return variant and address of each replica, by protocol; of sources, their names."""
    pool = pool.written
    return {
        protocol: frozenset(
            [
                *((pool.variant_of(each), address_of(each, protocol)) for each in pool.endpoints),
                *((source.variant or "", source.key) for source in pool.endpoints_from),
            ]
        )
        for protocol in PROTOCOLS
    }
