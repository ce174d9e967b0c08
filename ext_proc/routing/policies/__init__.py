"""The policies by name. A pool selects one by ``routing.policy``; a change keeps the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.policies.auto import Auto
from ext_proc.routing.policies.base import Policy
from ext_proc.routing.policies.co_batch import CoBatch
from ext_proc.routing.policies.consistent_hash import ConsistentHash
from ext_proc.routing.policies.consistent_hash_bounded import ConsistentHashBounded
from ext_proc.routing.policies.gpu_composite import GpuComposite
from ext_proc.routing.policies.learned import Learned
from ext_proc.routing.policies.least_in_flight import LeastInFlight
from ext_proc.routing.policies.least_response_time import LeastResponseTime
from ext_proc.routing.policies.power_of_two import PowerOfTwo
from ext_proc.routing.policies.prefix_affinity import PrefixAffinity
from ext_proc.routing.policies.prequal import Prequal
from ext_proc.routing.policies.random_choice import RandomChoice
from ext_proc.routing.policies.round_robin import RoundRobin
from ext_proc.routing.policies.session_sticky import SessionSticky
from ext_proc.routing.policies.token_bucket import TokenBucket
from ext_proc.routing.policies.weighted_round_robin import WeightedRoundRobin

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.values.rng import Rng

__all__ = ["POLICIES", "Policy", "make_policy"]

POLICIES: Final[dict[str, Callable[[Rng], Policy]]] = {
    "auto": lambda _rng: Auto(),
    "learned": lambda _rng: Learned(),
    "prefix-affinity": lambda _rng: PrefixAffinity(),
    "least-in-flight": lambda _rng: LeastInFlight(),
    "least-request": lambda _rng: LeastInFlight(),  # Envoy's name for it
    "weighted-least-pending": lambda _rng: LeastInFlight(),  # its name in the literature
    "least-response-time": lambda _rng: LeastResponseTime(),
    "peak-ewma": lambda _rng: PowerOfTwo("peak"),
    "p2c": lambda _rng: PowerOfTwo("requests"),
    "p2c-work": lambda _rng: PowerOfTwo("work"),
    "p2c-drain": lambda _rng: PowerOfTwo("drain"),
    "p2c-latency": lambda _rng: PowerOfTwo("latency"),
    "prequal": lambda _rng: Prequal(),
    "gpu-composite": lambda _rng: GpuComposite(),
    "token-bucket": lambda _rng: TokenBucket(),
    "consistent-hash": lambda _rng: ConsistentHash(),
    "consistent-hash-bounded": lambda _rng: ConsistentHashBounded(),
    "session-sticky": lambda _rng: SessionSticky(),
    "co-batch": lambda _rng: CoBatch(),
    "round-robin": RoundRobin,
    "weighted-round-robin": lambda _rng: WeightedRoundRobin(),
    "random": lambda _rng: RandomChoice(),
    "weighted-random": lambda _rng: RandomChoice(weighted=True),
    # Envoy asks no picker, but for what it cannot read itself.
    "envoy": lambda _rng: LeastInFlight(),
}
"""Ours, and those of other packages once they are taken (``ext_proc.packages``)."""


def make_policy(name: str, rng: Rng, *, pool: str) -> Policy:
    """Create the policy of a pool.

    Raises:
        ValueError: No policy has this name; the message names the pool and lists the names.
    """
    factory = POLICIES.get(name)
    if factory is None:
        known = ", ".join(sorted(POLICIES))
        hint = "install its package with each picker, or " if "." in name else ""
        raise ValueError(f"pool {pool!r}: unknown policy {name!r}; {hint}use one of: {known}")
    return factory(rng)
