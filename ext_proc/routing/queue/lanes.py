"""What limits the choice of a request: requests of one lane can go where any of them can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.state.leases import LeaseKey
from tidegate_api.names import POLICY_HEADER

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ext_proc.routing.state.leases import Leases
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.request import Request


def lane_of(request: Request, pool: Pool, leases: Leases, now: float) -> Hashable:
    """Return the lane of a request of ``pool``; its first member is the model.

    Args:
        request: The request.
        pool: Its pool.
        leases: Leases of sequences: one that has a lease goes to that replica only.
        now: Monotonic seconds.
    """
    features, care = request.features, request.care
    sequence = features.sequence
    lease = None if sequence is None else leases.find(LeaseKey(pool.name, sequence), now)
    return (
        features.model or "",
        features.version,
        request.protocol,
        request.variant,
        request.subset,
        request.headers.get(POLICY_HEADER),
        features.adapter if pool.adapters == "require" else None,
        None if care is None else (care.avoid, care.only),
        None if lease is None else lease.endpoint,
        # A request that draws its variant by its headers may be pinned to one.
        tuple(request.headers.get(name) for name in _pins(pool)) if not request.variant else None,
    )


def _pins(pool: Pool) -> list[str]:
    return sorted({name for each in pool.variants for name, _ in each.headers})
