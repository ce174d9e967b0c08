"""Candidate: a replica as it can be chosen in one pool, by one protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.latency.estimates import Served

if TYPE_CHECKING:
    from ext_proc.routing.latency.model import LatencyModel
    from ext_proc.routing.state.replica import Replica
    from ext_proc.routing.values.pool import Endpoint


class Candidate:
    """A replica as it can be chosen in one pool, under its variant and by one protocol."""

    __slots__ = (
        "adapters",
        "address",
        "capacity",
        "device",
        "draining",
        "host",
        "joined_unix_s",
        "key",
        "latency_model",
        "load",
        "position",
        "replica",
        "served",
        "variant",
        "zone",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        address: str,
        replica: Replica,
        position: int,
        latency_model: LatencyModel,
        served: Served | None = None,
    ) -> None:
        self.key = endpoint.key
        self.address = address
        self.host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
        self.variant = endpoint.variant
        self.capacity = endpoint.capacity
        self.draining = endpoint.draining
        self.zone = endpoint.zone
        self.device = endpoint.device
        self.adapters = endpoint.adapters
        self.joined_unix_s = endpoint.joined_unix_s
        self.replica = replica
        self.load = replica.load
        self.latency_model = latency_model
        self.served = served or Served()
        self.position = position
        """Index of its endpoint in the pool, stable until the pool changes."""

    def __repr__(self) -> str:
        return f"<Candidate {self.key.id} {self.address}>"
