"""Which replicas a question goes to. Pure.

Rules:

1. A replica of several pools is one replica. It is asked at the address of the question's protocol.
2. A question about a model goes to the replicas of the pools that list it; if none does, to all:
   what a pool does not list, such as the parts of an ensemble, may be loaded all the same.
3. At most ``MAX_REPLICAS`` replicas are asked, in the order of the pools.
4. A call of Triton's API is not for engines. A pool with paths of its own (``match.paths``) that is
   probed on another path than Triton's is one of engines; of any other with such paths an answer
   tells (``says_engine``).
5. A question about a model that names no version is for that of the replica's variant, as
   inferences are: where the variant has one, the replica is asked for it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from tidegate_api.kserve.v1 import kserve_pb2
from tidegate_api.pools import TRITON_PATHS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ext_proc.routing.values.pool import EndpointKey, Pool
    from gateway.merge.answers import Said
    from tidegate_api.names import Protocol
    from tidegate_common.upstream.contexts import ReplicaTls

MAX_REPLICAS: Final = 256
_UNKNOWN_PATH: Final = (404, 405)
_MODEL_PATH: Final = re.compile("^/v2/models/[^/]+")


class AskedReplica(NamedTuple):
    """A replica to ask."""

    key: EndpointKey
    address: str
    """``ip:port``."""
    pools: frozenset[str]
    """The pools that it is in, of those in sight."""
    tls: ReplicaTls | None = None
    """TLS that it speaks; ``None`` = it speaks plain."""
    version: str = ""
    """The version that it is asked for where the question names none; empty = none."""
    may_be_engine: bool = False
    """Whether all of these pools have paths of their own."""

    def path(self, path: str) -> str:
        """Return the path of a question, as this replica is asked."""
        if not self.version:
            return path
        return _MODEL_PATH.sub(rf"\g<0>/versions/{self.version}", path, count=1)

    def message(self, message: bytes) -> bytes:
        """Return the message of a question, as this replica is asked.

        The version is field 2 of all messages of questions about a model.
        """
        if not self.version:
            return message
        return message + kserve_pb2.ModelRequest(version=self.version).SerializeToString()


class AskedReplicas(NamedTuple):
    """The replicas to ask."""

    asked: tuple[AskedReplica, ...]
    unasked: int
    """Replicas above the bound, and those that were left out."""

    def without(self, names: Collection[str]) -> AskedReplicas:
        """Return this without the replicas of these ids."""
        asked = tuple(each for each in self.asked if each.key.id not in names)
        return AskedReplicas(asked, self.unasked + len(self.asked) - len(asked))


def of_tritons(pools: Iterable[Pool]) -> tuple[Pool, ...]:
    """Return the pools that are not surely of engines (rule 4); all if none is left."""
    every = tuple(pools)
    return tuple(pool for pool in every if not _of_engines(pool)) or every


def _of_engines(pool: Pool) -> bool:
    probes = [each.probe_path for each in pool.variants]
    return bool(pool.paths and probes) and not any(
        not path or path.startswith(TRITON_PATHS) for path in probes
    )


def says_engine(said: Said) -> bool:
    """Return whether this is the answer of an engine on a path of Triton, which it does not know.

    Triton's errors are objects whose ``error`` is a text.
    """
    if said.status not in _UNKNOWN_PATH or said.fault is not None:
        return False
    try:
        value = orjson.loads(said.body)
    except orjson.JSONDecodeError:
        return True
    return not (isinstance(value, dict) and isinstance(value.get("error"), str))


class UnknownReplicaError(LookupError):
    """No replica in sight has this id."""


def in_sight(pools: Mapping[str, Pool], names: frozenset[str] | None) -> tuple[Pool, ...]:
    """Return the pools of these names, all for ``None``, in the order of their names."""
    return tuple(pool for name, pool in sorted(pools.items()) if names is None or name in names)


def about(pools: Iterable[Pool], model: str) -> tuple[Pool, ...]:
    """Return the pools that list a model; all if none does."""
    every = tuple(pools)
    return tuple(pool for pool in every if model in pool.models) or every


def pinned(pools: Iterable[Pool], model: str, endpoint: str = "") -> dict[str, str]:
    """Return the replicas whose variant has a version, and which variant, in words.

    Args:
        pools: The pools in sight.
        model: The model; pools that do not list it do not count.
        endpoint: Only the replica of this id; empty = all.
    """
    found: dict[str, str] = {}
    for pool in pools:
        of = {each.name: each.model_version for each in pool.variants if each.model_version}
        for each in pool.endpoints if model in pool.models else ():
            version = of.get(each.variant)
            if version and endpoint in {"", each.key.id}:
                words = f"variant {each.variant} of pool {pool.name} has model_version {version}"
                found.setdefault(each.key.id, words)
    return found


def replicas_of(
    pools: Iterable[Pool], protocol: Protocol, endpoint: str = "", unversioned: str = ""
) -> AskedReplicas:
    """Return the replicas to ask.

    Args:
        pools: The pools in sight.
        protocol: Protocol of the question.
        endpoint: Only the replica of this id; empty = all.
        unversioned: The model that the question is about and names no version of; empty = none.

    Raises:
        UnknownReplicaError: There is no such replica, or it does not speak the protocol.
    """
    found: dict[EndpointKey, tuple[str, set[str], ReplicaTls | None]] = {}
    versions: dict[EndpointKey, str] = {}
    tritons: set[EndpointKey] = set()
    for pool in pools:
        asks = unversioned in pool.models and not endpoint
        of = {v.name: v.model_version for v in pool.variants if v.model_version and asks}
        for each in pool.endpoints:
            address = each.address(protocol)
            if address is not None and (not endpoint or each.key.id == endpoint):
                known = found.setdefault(each.key, (address, set(), pool.upstream_tls))
                known[1].add(pool.name)
                if not pool.paths:
                    tritons.add(each.key)
                if of:
                    versions.setdefault(each.key, of.get(each.variant, ""))
    if endpoint and not found:
        raise UnknownReplicaError(endpoint)
    every = tuple(
        AskedReplica(key, address, frozenset(names), tls, versions.get(key, ""), key not in tritons)
        for key, (address, names, tls) in found.items()
    )
    return AskedReplicas(every[:MAX_REPLICAS], len(every[MAX_REPLICAS:]))
