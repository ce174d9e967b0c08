"""Replica: the router's state of one endpoint identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.latency.pending_first_bytes import PendingFirstBytes
from ext_proc.routing.values.capacity import NO_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.latency.estimates import Served
    from ext_proc.routing.latency.model import LatencyModel
    from ext_proc.routing.state.ledger import Load
    from ext_proc.routing.values.pool import EndpointKey
    from ext_proc.routing.values.reading import Reading

FRESH_S: Final = 2.0
"""Age in seconds from which a reading is stale: Triton's queue turns over many times in it."""

_NONE: Final[frozenset[str]] = frozenset()
LAG_TOKENS: Final = 65_536.0
"""How many tokens ``Replica.prefilled`` may be below that of another replica of a pool."""
NO_LIMIT: Final = 2**62
BY_MODEL: Final = 0
"""In place of a limit: it has one for each of its models."""
ONE_SLOT: Final = 2
"""The limit of a replica that runs one request at once."""
MAX_READINGS: Final = 256
"""Maximum readings kept per replica; a metrics page rarely has more than one per model and
version."""


def most_of_low(most: int) -> int:
    """Return how many requests fill a limit of which a place is kept (``limits``, rule 5)."""
    return most - 1 if most > ONE_SLOT else most


class Replica:
    """The load, latency and readings of one endpoint identity, shared by all pools."""

    __slots__ = (
        "adapters",
        "bounds",
        "bursts",
        "busy_until",
        "cache_tokens",
        "clock_per_token",
        "first_bytes",
        "has_reported",
        "held_until",
        "key",
        "kv_at",
        "kv_used",
        "latency_models",
        "load",
        "most",
        "most_of",
        "others",
        "others_at",
        "prefilled",
        "readings",
        "restarted_unix_s",
        "sent",
        "served",
        "silent",
    )

    def __init__(self, key: EndpointKey, load: Load) -> None:
        self.key = key
        self.load = load
        self.bounds = NO_BOUNDS
        """Bounds of its blocks in the prefix index, as its pools set them."""
        self.cache_tokens: float | None = None
        """Tokens that its KV cache holds, by its page; ``None`` = unknown."""
        self.first_bytes = PendingFirstBytes()
        """Requests that are still pending their first byte."""
        self.busy_until = float("-inf")
        """The virtual clock: when the prefill that we sent will be done, monotonic seconds."""
        self.clock_per_token = 0.0
        """Seconds of a token when the clock was set; 0 if pools with speeds of their own share the
        replica."""
        self.held_until = float("-inf")
        """When a prompt that joined its queue at the latest page would leave it, if it waited as
        long as the first in the queue has, monotonic seconds."""
        self.prefilled = 0.0
        """Tokens that we and the other workers sent it to compute, as ``prompted`` counts them."""
        self.sent = 0.0
        """Work that this worker has sent it, as tickets count it."""
        self.latency_models: dict[str, LatencyModel] = {}
        """Its latency model in each pool."""
        self.served: dict[str, Served] = {}
        """Estimates of how it answers, by pool."""
        self.kv_used = 0.0
        """Share in use of its fullest KV cache at ``kv_at``, 0..1."""
        self.kv_at = float("-inf")
        """Monotonic seconds."""
        self.readings: tuple[Reading, ...] = ()
        self.most = NO_LIMIT
        """Limit of its requests in flight (``limits``), ``NO_LIMIT`` or ``BY_MODEL``."""
        self.most_of: dict[str, int] = {}
        """Limits by model."""
        self.bursts = 0.0
        """By which share of them a burst may exceed its limits (``limits``, rule 7)."""
        self.adapters = _NONE
        """LoRA adapters that its readings name."""
        self.restarted_unix_s: float | None = None
        """Wall-clock seconds of the last observed restart, at which its ramp starts again."""
        self.others = 0.0
        """Requests of other clients queued in the replica at ``others_at``."""
        self.others_at = float("-inf")
        """Monotonic seconds; once ``FRESH_S`` old, ``others`` is unknown."""
        self.has_reported = False
        """It has reported readings at least once."""
        self.silent = False
        """Its readings have stopped: it is probably dead, so it is chosen last."""

    def observe(self, readings: Sequence[Reading]) -> None:
        """Replace the replica's readings.

        Queued requests beyond our own requests in flight at this moment are attributed to other
        clients. This is a lower bound, because some of ours may be running already, and counts
        none of ours twice.
        """
        self.readings = tuple(readings[:MAX_READINGS])
        self.adapters = _NONE.union(*(each.adapters or _NONE for each in self.readings))
        self.has_reported, self.silent = True, False
        known = [(each.queued, each.at) for each in self.readings if each.queued is not None]
        if known:
            queued = sum(number for number, _ in known)
            self.others = max(0.0, queued - self.load.in_flight)
            self.others_at = min(at for _, at in known)
        else:
            self.others_at = float("-inf")
        full = [(each.kv_used, each.at) for each in self.readings if each.kv_used is not None]
        self.kv_used, self.kv_at = max(full, default=(0.0, float("-inf")))

    def busy(self, until: float, seconds_per_token: float) -> None:
        """Set the virtual clock.

        Args:
            until: Monotonic seconds.
            seconds_per_token: The speed by which it was computed.
        """
        self.busy_until = until
        self.clock_per_token = seconds_per_token if len(self.latency_models) == 1 else 0.0

    def prompted(self, tokens: float, most: float) -> float:
        """Note that a prompt is sent.

        A replica that is more than ``LAG_TOKENS`` behind another one, because it is new or the
        other had more to compute for a while, does not have to make up for the rest.

        Args:
            tokens: What the replica has to compute.
            most: The highest ``prefilled`` of the pool's replicas so far.

        Returns:
            The highest ``prefilled`` from now on.
        """
        self.prefilled = max(self.prefilled, most - LAG_TOKENS) + tokens
        return max(most, self.prefilled)

    def hold(self, at: float, waited_s: float) -> None:
        """Note how long the first prompt in the engine's queue had waited at a page.

        The delay at the head of a queue predicts that of the next to join it (Ibrahim and Whitt,
        2009); from the page on it falls with the time.

        Args:
            at: When the page was read, monotonic seconds.
            waited_s: Seconds; 0 if nothing waited.
        """
        self.held_until = at + waited_s
        if waited_s > 0.0:
            self.busy_until = max(self.busy_until, self.held_until)

    def drain_s(self, now: float, seconds_per_token: float) -> float:
        """Return the seconds of prefill before a new request.

        The virtual clock counts seconds of the speed that was known when it was set: what is left
        of it takes as much longer or shorter as a token does now. It is bounded by the work in
        flight whose answers are not known to have begun: the rest is done, however slow the replica
        was estimated to be. It is at least the wait at the head of the engine's queue (``hold``),
        which may also be one for a place in the batch or for room in the cache.
        """
        drain = self.busy_until - now
        if drain <= 0.0:
            return 0.0
        if self.clock_per_token:
            drain *= seconds_per_token / self.clock_per_token
        left = (self.load.work - self.first_bytes.done) * seconds_per_token
        drain = min(drain, left) if left > 0.0 else 0.0
        held = self.held_until - now
        return held if held > drain else drain  # noqa: FURB136 - half the time

    def others_queued(self, now: float) -> float | None:
        """Return the requests of other clients queued in the replica, ``None`` if unknown."""
        return self.others if now - self.others_at < FRESH_S else None
