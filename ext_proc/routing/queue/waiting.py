"""A request that waits for a replica, the bounds of its wait, and what limits its choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.state.leases import LeaseKey
from ext_proc.routing.values.request import band_of
from tidegate_api.names import POLICY_HEADER
from tidegate_api.pools import MAX_WAIT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ext_proc.routing.pipeline.scheduler import Decision
    from ext_proc.routing.state.leases import Leases
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.refusal import Refusal
    from ext_proc.routing.values.request import Request


MOST_S: Final = MAX_WAIT_S
"""Longest wait, seconds."""


class QueuedRequest:
    """One request that waits.

    Args:
        request: The request; the replica is chosen when it leaves.
        size: Bytes that it holds in memory, about.
        since: When it began to wait, monotonic seconds.
        deadline: When its caller will have left, monotonic seconds; ``None`` = unknown.
        hold_s: Longest wait that the proxy allows, seconds.
        told: Called once, with the decision or the refusal that ends the wait; not if it is left.
        key: On whose account it waits; empty = all share one.
    """

    __slots__ = (
        "band",
        "deadline",
        "due",
        "hold_s",
        "key",
        "lane",
        "model",
        "number",
        "pool",
        "rank",
        "refusal",
        "request",
        "since",
        "size",
        "told",
    )

    def __init__(
        self,
        request: Request,
        size: int,
        since: float,
        deadline: float | None,
        hold_s: float,
        told: Callable[[Decision | Refusal], None],
        key: str = "",
    ) -> None:
        self.request = request
        self.pool = request.pool
        self.model = request.features.model or ""
        self.lane: Hashable = None
        """What limits its choice: requests of one lane can all go where its first can. Set by the
        router (``lane_of``)."""
        self.size = size
        self.since = since
        self.deadline = deadline
        self.hold_s = hold_s
        self.told = told
        self.key = key
        self.band = band_of(request.features.priority)
        latest = since + MOST_S
        self.rank = latest if deadline is None else min(latest, deadline)
        """Among requests of a band the one with the earliest goes first."""
        self.due = latest
        """When it is refused, monotonic seconds; set as it joins the queue."""
        self.number = 0
        """Order of arrival; 0 = it is not in the queue."""
        self.refusal: Refusal | None = None
        """Why it could not go when it was last tried."""

    def __repr__(self) -> str:
        return f"<QueuedRequest {self.pool}/{self.model} number={self.number} band={self.band}>"


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
