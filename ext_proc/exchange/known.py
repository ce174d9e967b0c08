"""What an exchange knows of its request before the decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ext_proc.exchange.events import Head
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.request import Features
    from tidegate_api.names import ClusterRef


class KnownRequest:
    """Information about a request before the decision."""

    __slots__ = ("body", "features", "head", "held", "pool", "ref", "repeatable")

    def __init__(self, head: Head, ref: ClusterRef, features: Features, pool: Pool | None) -> None:
        self.head = head
        self.ref = ref
        self.features = features
        self.pool = pool
        self.held: bytearray | None = None
        """Chunks that wait for the decision; ``None`` if the body is not sent in duplex."""
        self.body: bytes | None = None
        """The whole body; ``None`` = not read, or not to its end."""
        self.repeatable = True
        """The proxy can send the request again: what was read of its body was not cut."""
