"""What the router knows about one endpoint identity beside its membership."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.latency.pending_first_bytes import PendingFirstBytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.latency.estimates import Served
    from ext_proc.routing.latency.model import LatencyModel
    from ext_proc.routing.state.ledger import Load
    from ext_proc.routing.values.pool import EndpointKey
    from ext_proc.routing.values.reading import Reading

FRESH_S: Final = 2.0
"""An older reading is unknown: Triton's queue turns over many times in it."""

MAX_READINGS: Final = 256
"""Readings kept per replica; one page rarely has more than one per model and version."""


class Replica:
    """What the router knows about one endpoint identity beside its membership."""

    __slots__ = (
        "busy_until",
        "first_bytes",
        "heard",
        "key",
        "kv_at",
        "kv_used",
        "latency_models",
        "load",
        "others",
        "others_at",
        "readings",
        "restarted_unix_s",
        "served",
        "silent",
    )

    def __init__(self, key: EndpointKey, load: Load) -> None:
        self.key = key
        self.load = load
        self.first_bytes = PendingFirstBytes()
        """Requests whose answers have not begun, as far as is known."""
        self.busy_until = float("-inf")
        """The virtual clock: when the prefill that we sent will be done, monotonic seconds."""
        self.latency_models: dict[str, LatencyModel] = {}
        """What its requests taught, by pool."""
        self.served: dict[str, Served] = {}
        """How it answered, by pool."""
        self.kv_used = 0.0
        """Fullest KV cache that it told of at ``kv_at``."""
        self.kv_at = float("-inf")
        self.readings: tuple[Reading, ...] = ()
        self.restarted_unix_s: float | None = None
        """Wall clock of the last restart seen, where its ramp starts again."""
        self.others = 0.0
        """Requests of others that waited in the replica at ``others_at``."""
        self.others_at = float("-inf")
        """Monotonic seconds; once ``FRESH_S`` old, ``others`` is unknown."""
        self.heard = False
        """It has told its numbers at least once."""
        self.silent = False
        """It told its numbers and then stopped: probably dead, so it is chosen last."""

    def observe(self, readings: Sequence[Reading]) -> None:
        """Take a replica's readings in place of the earlier ones.

        What waits beyond our own requests in flight at this moment was sent by others. It is a
        lower bound, as some of ours may be running already, and counts none of ours twice.
        """
        self.readings = tuple(readings[:MAX_READINGS])
        self.heard, self.silent = True, False
        known = [(each.queued, each.at) for each in self.readings if each.queued is not None]
        if known:
            queued = sum(number for number, _ in known)
            self.others = max(0.0, queued - self.load.in_flight)
            self.others_at = min(at for _, at in known)
        else:
            self.others_at = float("-inf")
        full = [(each.kv_used, each.at) for each in self.readings if each.kv_used is not None]
        self.kv_used, self.kv_at = max(full, default=(0.0, float("-inf")))

    def drain_s(self, now: float, seconds_per_token: float) -> float:
        """Return the seconds of prefill that stand before a new request.

        Work in flight bounds what the clock says: what has ended is done, however slow the
        replica was thought to be.
        """
        drain = self.busy_until - now
        if drain <= 0.0:
            return 0.0
        return min(drain, self.load.work * seconds_per_token)

    def others_queued(self, now: float) -> float | None:
        """Return the requests of others that wait in the replica, ``None`` where unknown."""
        return self.others if now - self.others_at < FRESH_S else None
