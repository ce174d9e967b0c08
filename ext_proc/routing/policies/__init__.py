"""The policies by name. A pool chooses one by ``routing.policy``; changing it keeps the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.policies.auto import Auto
from ext_proc.routing.policies.base import Offer, Policy
from ext_proc.routing.policies.least_in_flight import LeastInFlight
from ext_proc.routing.policies.prefix_affinity import PrefixAffinity
from ext_proc.routing.policies.round_robin import RoundRobin

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.draw import Rng

__all__ = ["POLICIES", "Offer", "Policy", "make_policy"]

POLICIES: Final[dict[str, Callable[[Rng], Policy]]] = {
    "auto": lambda _rng: Auto(),
    "prefix-affinity": lambda _rng: PrefixAffinity(),
    "least-in-flight": lambda _rng: LeastInFlight(),
    "round-robin": RoundRobin,
}


def make_policy(name: str, rng: Rng, *, pool: str) -> Policy:
    """Make the policy of a pool.

    Raises:
        ValueError: No policy has that name; the message names the pool and lists the names.
    """
    factory = POLICIES.get(name)
    if factory is None:
        known = ", ".join(sorted(POLICIES))
        raise ValueError(f"pool {pool!r}: unknown policy {name!r}; use one of: {known}")
    return factory(rng)
