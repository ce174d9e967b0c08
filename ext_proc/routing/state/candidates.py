"""Replicas, candidates, pools and the context of a request, ready for a decision that only reads.

A *replica* is one endpoint identity, shared by all pools that list it. A *candidate* is a replica
as it can be chosen in one pool, under its variant and by one protocol. Everything that stays the
same until the pool changes is computed once, in the *pool state*. The *scheduling context* is what
a policy sees of them for one request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.latency.model import LatencyModel, Served
from ext_proc.routing.latency.pending_first_bytes import PendingFirstBytes
from ext_proc.routing.values.capacity import NO_BOUNDS
from ext_proc.routing.values.plain import Plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ext_proc.canary import CanarySessions
    from ext_proc.routing.latency.model import FleetLatencyModel
    from ext_proc.routing.state.ledger import Load
    from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Protocol
    from ext_proc.routing.values.reading import Reading
    from ext_proc.routing.values.request import Request
    from ext_proc.routing.values.rng import Rng


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


BURST_S: Final = 2.0
"""How long requests may exceed the limits of all replicas, seconds."""
CALM_S: Final = 10.0
"""How long none must have waited after that, until they may again, seconds."""


class PoolState:
    """The candidates of one pool.

    Args:
        pool: The pool.
        replicas: The state of its endpoints. It holds their latency models and estimates in this
            pool, so a new pool state keeps what was learned.
        latency_model: The pool's fleet latency model.
    """

    def __init__(
        self, pool: Pool, replicas: Mapping[EndpointKey, Replica], latency_model: FleetLatencyModel
    ) -> None:
        self.pool = pool
        self.latency_model = latency_model
        for each in pool.endpoints:
            latency_models = replicas[each.key].latency_models
            replicas[each.key].served.setdefault(pool.name, Served())
            latency_models.setdefault(pool.name, LatencyModel(latency_model, each.capacity)).adapt(
                each.capacity
            )
        self.size = len(pool.endpoints)
        self.keys = frozenset(each.key for each in pool.endpoints)
        only = pool.variants[0] if len(pool.variants) == 1 else None
        self.only = only.name if only is not None and only.weight else None
        """The only variant of the pool, which needs no draw unless a request names a version;
        ``None`` if there are several or its weight is 0."""
        self.prefers = bool(pool.prefer_zone or pool.model_needs)
        """Its settings have preferences among replicas."""
        self.others_at = max(
            [replicas[key].others_at for key in self.keys if replicas[key].others],
            default=float("-inf"),
        )
        """When a replica last had requests of other clients queued, monotonic seconds."""
        self.versions = {
            each.name: each.model_version for each in pool.variants if each.model_version
        }
        """The versions of the variants that have one."""
        self.open: dict[tuple[str, Protocol], tuple[Candidate, ...]] = {}
        """The candidates of a variant that are not draining, in the pool's order."""
        self.open_by_key: dict[tuple[str, Protocol], dict[EndpointKey, Candidate]] = {}
        """The same candidates by identity."""
        self._of: dict[tuple[EndpointKey, Protocol], Candidate] = {}
        self.remembered: dict[tuple[str, Protocol], tuple[Candidate, ...]] = {}
        """Good candidates left over from the previous decision, by variant and protocol; see
        ``sampling``."""
        self.canary: CanarySessions | None = None
        """Its sessions, where a rollout may run; set by the router."""
        self.prefilled = 0.0
        """The highest ``Replica.prefilled`` of its replicas that a pick has left."""
        self.exceeded: dict[tuple[str, str], tuple[float, float]] = {}
        """Since when requests of a variant and model have exceeded the limits of all replicas, and
        when one did last, or had to wait, monotonic seconds; unlisted models count as one."""
        self.mixes = False
        """Replicas share a host, or are in several zones, so that several may fail together."""
        self._at: dict[str, EndpointKey] = {}
        protocols: tuple[Protocol, ...] = ("http", "grpc")
        for protocol in protocols:
            candidates = [
                Candidate(
                    each,
                    address,
                    replicas[each.key],
                    position,
                    replicas[each.key].latency_models[pool.name],
                    replicas[each.key].served[pool.name],
                )
                for position, each in enumerate(pool.endpoints)
                if (address := each.address(protocol)) is not None
            ]
            hosts, zones = {each.host for each in candidates}, {each.zone for each in candidates}
            self.mixes |= len(zones) > 1 or 1 < len(hosts) < len(candidates)
            for candidate in candidates:
                self._of[candidate.key, protocol] = candidate
                self._at[candidate.address] = candidate.key
            for variant in pool.variants:
                free = [
                    candidate
                    for candidate in candidates
                    if candidate.variant == variant.name and not candidate.draining
                ]
                self.open[variant.name, protocol] = tuple(free)
                self.open_by_key[variant.name, protocol] = {
                    candidate.key: candidate for candidate in free
                }

    def stands(self, variant: str, model: str, now: float) -> bool:
        """Return whether limits have been exceeded for so long that it is no burst."""
        span = self.exceeded.get((variant, self._named(model)))
        return span is not None and now - span[0] >= BURST_S and now - span[1] < CALM_S

    def exceeds(self, variant: str, model: str, now: float) -> None:
        """Note a request that exceeds a limit."""
        key = variant, self._named(model)
        since, latest = self.exceeded.get(key, (now, now))
        self.exceeded[key] = (now if now - latest >= CALM_S else since), now

    def waits(self, model: str, now: float) -> None:
        """Note that a request of a model has to wait."""
        for key, (since, _) in self.exceeded.items():
            if key[1] == self._named(model):
                self.exceeded[key] = since, now

    def has_room(self, variant: str, model: str) -> None:
        """Note a request that has found room, while none of its model wait: a burst is over."""
        span = self.exceeded.get(key := (variant, self._named(model)))
        if span is not None and span[1] - span[0] < BURST_S:
            del self.exceeded[key]

    def _named(self, model: str) -> str:
        return model if model in self.pool.models else ""

    def candidate(self, key: EndpointKey, protocol: Protocol) -> Candidate | None:
        """Return the candidate of one endpoint, draining or not."""
        return self._of.get((key, protocol))

    def at(self, address: str) -> EndpointKey | None:
        """Return the endpoint of this pool at an ``ip:port``, ``None`` if there is none."""
        return self._at.get(address)


class SchedulingContext(Plain):
    """One request and its eligible candidates; the lists are parallel to ``candidates``.

    Args:
        request: The request.
        candidates: At least one.
        variant: The variant of the candidates.
        slots: Endpoints in the pool, eligible or not; a candidate's ``position`` is below it.
        pending: Requests on each replica: ours in flight, plus those of other clients queued there
            if known.
        work: Uncached input tokens that we have in flight on each replica; empty if the policy does
            not use them (``Policy.weighs``).
        strength: Capacity of each replica, above 0; empty if neither policy nor ``ramp`` uses it.
        matched: Blocks of the prompt that each replica probably holds, contiguous from the root.
        blocks: Full blocks of the prompt; 0 = unknown or shorter than one block.
        shared: Leading blocks that are worth a copy on every replica
            (``PrefixTable.shared_depth``).
        load_factor: The pool's setting.
        tokens: Estimated tokens of the prompt; ``None`` if no prompt was read.
        block_tokens: Estimated tokens per block.
        latency_model: The pool's fleet latency model.
        now: Monotonic seconds.
        rng: Source of randomness.
        ramp: Ramp factor of each candidate, 1 = warm; ``None`` if all are warm. The router limits
            ramping candidates itself (``slow_start``), so policies price them like the others.
        branched: Leading blocks that belong to several prompts (``PrefixTable.branched_depth``);
            0 if the policy does not use them (``Policy.copies``).
    """

    __slots__ = (
        "block_tokens",
        "blocks",
        "branched",
        "candidates",
        "latency_model",
        "load_factor",
        "matched",
        "now",
        "pending",
        "ramp",
        "request",
        "rng",
        "shared",
        "slots",
        "strength",
        "tokens",
        "variant",
        "work",
    )

    def __init__(
        self,
        request: Request,
        candidates: Sequence[Candidate],
        variant: str,
        slots: int,
        pending: Sequence[float],
        work: Sequence[float],
        strength: Sequence[float],
        matched: Sequence[int],
        blocks: int,
        shared: int,
        load_factor: float,
        tokens: float | None,
        block_tokens: float,
        latency_model: FleetLatencyModel,
        now: float,
        rng: Rng,
        ramp: Sequence[float] | None = None,
        branched: int = 0,
    ) -> None:
        self.request = request
        self.candidates = candidates
        self.variant = variant
        self.slots = slots
        self.pending = pending
        self.work = work
        self.strength = strength
        self.matched = matched
        self.blocks = blocks
        self.shared = shared
        self.load_factor = load_factor
        self.tokens = tokens
        self.block_tokens = block_tokens
        self.latency_model = latency_model
        self.now = now
        self.rng = rng
        self.ramp = ramp
        self.branched = branched
