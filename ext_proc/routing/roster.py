"""The roster: a pool compiled for deciding, so that a decision only reads.

A *replica* is one endpoint identity, shared by all pools it serves; a *seat* is a replica as one
pool, variant and protocol offer it. What never changes between two memberships is worked out
here once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.awaited import Awaited
from ext_proc.routing.estimates import Served
from ext_proc.routing.pace import Pace
from ext_proc.routing.types import Form, Refusal, RefusalKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ext_proc.routing.ledger import Load
    from ext_proc.routing.pace import FleetPace
    from ext_proc.routing.types import (
        Endpoint,
        EndpointKey,
        Features,
        Pool,
        Protocol,
        Reading,
    )

FRESH_S: Final = 2.0
"""An older reading is unknown: Triton's queue turns over many times in it."""
MAX_READINGS: Final = 256
"""Readings kept per replica; one page rarely has more than one per model and version."""


class Replica:
    """What the router knows about one endpoint identity beside its membership."""

    __slots__ = (
        "awaited",
        "busy_until",
        "heard",
        "key",
        "kv_at",
        "kv_used",
        "load",
        "others",
        "others_at",
        "paces",
        "readings",
        "restarted_unix_s",
        "served",
        "silent",
    )

    def __init__(self, key: EndpointKey, load: Load) -> None:
        self.key = key
        self.load = load
        self.awaited = Awaited()
        """Requests whose answers have not begun, as far as is known."""
        self.busy_until = float("-inf")
        """The virtual clock: when the prefill that we sent will be done, monotonic seconds."""
        self.paces: dict[str, Pace] = {}
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


class Seat:
    """A replica as one pool, variant and protocol offer it."""

    __slots__ = (
        "adapters",
        "address",
        "capacity",
        "device",
        "draining",
        "host",
        "joined_unix_s",
        "key",
        "load",
        "pace",
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
        pace: Pace,
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
        self.pace = pace
        self.served = served or Served()
        self.position = position
        """Its place in the pool, stable while the membership is."""

    def __repr__(self) -> str:
        return f"<Seat {self.key.id} {self.address}>"


class Roster:
    """The seats of one pool.

    Args:
        pool: The pool.
        replicas: What is known of its endpoints; what their requests taught in this pool is
            kept there, so a new roster knows it too.
        pace: What the pool's usual replica needs.
    """

    def __init__(
        self, pool: Pool, replicas: Mapping[EndpointKey, Replica], pace: FleetPace
    ) -> None:
        self.pool = pool
        self.pace = pace
        for each in pool.endpoints:
            paces = replicas[each.key].paces
            replicas[each.key].served.setdefault(pool.name, Served())
            paces.setdefault(pool.name, Pace(pace, each.capacity)).adapt(each.capacity)
        self.size = len(pool.endpoints)
        only = pool.variants[0] if len(pool.variants) == 1 else None
        self.only = only.name if only is not None and only.weight else None
        """The one variant, where there is nothing to draw unless a request asks for a version."""
        self._open: dict[tuple[str, Protocol], tuple[Seat, ...]] = {}
        self._open_by_key: dict[tuple[str, Protocol], dict[EndpointKey, Seat]] = {}
        self._of: dict[tuple[EndpointKey, Protocol], Seat] = {}
        self.remembered: dict[tuple[str, Protocol], tuple[Seat, ...]] = {}
        """Seats of a variant that were good and left over (``candidates``)."""
        self.keys = frozenset(each.key for each in pool.endpoints)
        self._at: dict[str, EndpointKey] = {}
        protocols: tuple[Protocol, ...] = ("http", "grpc")
        for protocol in protocols:
            seats = [
                Seat(
                    each,
                    address,
                    replicas[each.key],
                    position,
                    replicas[each.key].paces[pool.name],
                    replicas[each.key].served[pool.name],
                )
                for position, each in enumerate(pool.endpoints)
                if (address := each.address(protocol)) is not None
            ]
            for seat in seats:
                self._of[seat.key, protocol] = seat
                self._at[seat.address] = seat.key
            for variant in pool.variants:
                free = [
                    seat for seat in seats if seat.variant == variant.name and not seat.draining
                ]
                self._open[variant.name, protocol] = tuple(free)
                self._open_by_key[variant.name, protocol] = {seat.key: seat for seat in free}

    def open_seats(self, variant: str, protocol: Protocol) -> tuple[Seat, ...]:
        """Return the seats of a variant that take new work, in the pool's order."""
        return self._open.get((variant, protocol), ())

    def open_by_key(self, variant: str, protocol: Protocol) -> Mapping[EndpointKey, Seat]:
        """Return the same seats by identity."""
        return self._open_by_key.get((variant, protocol), {})

    def seat(self, key: EndpointKey, protocol: Protocol) -> Seat | None:
        """Return the seat of one endpoint, draining or not."""
        return self._of.get((key, protocol))

    def at(self, address: str) -> EndpointKey | None:
        """Return who listens on an ``ip:port``, ``None`` where it is nobody of this pool."""
        return self._at.get(address)


class Directory:
    """Which pool a request belongs to when no route said so; all questions are O(1).

    Where several pools serve one model, the first by name has it.
    """

    def __init__(self, pools: Sequence[Pool]) -> None:
        self.names = frozenset(pool.name for pool in pools)
        self.paths: set[str] = set()
        """Paths whose body names the model."""
        self.by_model: dict[str, str] = {}
        self.by_path_and_model: dict[tuple[str, str], str] = {}
        self.path_defaults: dict[str, str] = {}
        self.grpc_default: str | None = None
        for pool in sorted(pools, key=lambda each: each.name):
            self.paths |= pool.paths
            for model in sorted(pool.models):
                self.by_model.setdefault(model, pool.name)
                for path in pool.paths:
                    self.by_path_and_model.setdefault((path, model), pool.name)
            for path in pool.default_for_paths:
                self.path_defaults.setdefault(path, pool.name)
            if pool.default_for_grpc and self.grpc_default is None:
                self.grpc_default = pool.name

    def find(self, features: Features, path: str, protocol: Protocol) -> str | Refusal:
        """Name the pool of a request that no route named; the order is ``Router.pool_for``'s."""
        if features.pool is not None:
            if features.pool in self.names:
                return features.pool
            return Refusal(RefusalKind.UNKNOWN_POOL, f"no pool is named {features.pool!r}")
        path = path.partition("?")[0]
        own_path = protocol == "http" and path in self.paths
        if features.model is not None:
            found = (
                self.by_path_and_model.get((path, features.model))
                if own_path
                else self.by_model.get(features.model)
            )
            if found is not None:
                return found
        if features.model is not None and features.form is not Form.MODEL_CALL:
            on = f" on {path}" if own_path else ""
            return Refusal(
                RefusalKind.UNKNOWN_MODEL, f"no pool serves the model {features.model!r}{on}"
            )
        default = self.path_defaults.get(path) if own_path else None
        if protocol == "grpc":
            default = self.grpc_default
        if default is not None:
            return default
        return Refusal(
            RefusalKind.UNKNOWN_MODEL,
            "the request names no model, and no pool is the default for its form;"
            " send the header tidegate-pool or tidegate-model",
        )
