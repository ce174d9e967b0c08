"""Settings of a simulation: the fleet, its incidents and the router's telemetry."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from bench.engine import EngineConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidegate_api.pools import LimitMode

MAX_REPLICAS = 10_000
MAX_PICKERS = 64


class ScenarioError(ValueError):
    """An invalid scenario; the message names the setting."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One fleet; times are simulated seconds.

    Raises:
        ScenarioError: A setting is out of range or contradicts another one.
    """

    replicas: int = 8
    engine: EngineConfig = field(default_factory=EngineConfig)
    slow_replicas: int = 0
    """Number of replicas, from the last, that run at ``slow_speed``."""
    slow_speed: float = 0.5
    capacities_known: bool = True
    """Whether the pool states each replica's speed as its capacity."""
    join_at_s: float | None = None
    """Time at which the first replica joins with an empty cache; ``None``: at the start."""
    fail_at_s: float | None = None
    """Time at which the second replica fails; ``None``: never."""
    down_s: float = 60.0
    """Duration of the failure; the replica returns with an empty cache."""
    brake_at_s: float | None = None
    """Time at which the second replica drops to ``brake_speed`` unannounced; ``None``: never."""
    brake_s: float = 60.0
    """Duration at ``brake_speed``."""
    brake_speed: float = 0.25
    restart_at_s: float | None = None
    """Time at which the last ``restarted_replicas`` restart with empty caches; ``None``: never.
    They are up again at once; what they had not begun to answer moves to fallbacks."""
    restarted_replicas: int = 5
    telemetry_s: float = 1.0
    """Interval of a replica's samples; 0: no telemetry."""
    telemetry_delay_s: float = 0.1
    """Age of a sample when the router receives it."""
    first_tokens: bool = True
    """Whether the access log tells the picker when answers began; otherwise only when they end."""
    freeze_at_s: float | None = None
    """Time from which samples keep their old values but have new times; ``None``: never."""
    freeze_s: float = 30.0
    """Duration of the freeze."""
    zone_hop_s: float = 0.0
    """Round trip to the second half of the replicas, which are in another zone; 0: one zone."""
    slow_start_s: float = 0.0
    """Slow-start window of the pool."""
    index_blocks: int | None = None
    """The pool's ``index_blocks``; ``None``: its default. Telemetry tells the real size."""
    bytes_per_token: float | None = None
    """Bytes of text for each token. The pool then has the default size of blocks, in bytes; with
    ``None`` its blocks are those of the trace, at 4 bytes per token."""
    models: int = 1
    """Number of models that every engine serves; its page does not tell them apart."""
    limit: LimitMode = "none"
    """The pool's ``routing.limit``."""
    per_endpoint_in_flight: int = 0
    """The pool's own limit; 0: none."""
    tells: Literal["declared", "observed", "nothing"] = "observed"
    """What replicas tell of their slots: their number, what runs and waits, or nothing."""
    hold_s: float = 0.0
    """How long a job waits for a replica with room before it is shed; 0: it is shed at once."""
    calm: tuple[float, float] | None = None
    """Share of the jobs at the start that arrive more slowly, and the factor on their rate."""
    deadline_s: float | None = None
    """Time from its arrival on after which a job's caller leaves, as the picker is told; ``None``:
    it is told none."""
    counts: bool = True
    """Whether replicas count prompts and their tokens on their pages."""
    pickers: int = 1
    """Number of independent pickers; each schedules a random share of the jobs and sees the load of
    the others in telemetry only."""
    warmup: float = 0.1
    """Fraction of the jobs at the start that is not measured, because caches are cold."""
    window_s: tuple[float, float] | None = None
    """Measure only jobs that arrive in this interval [start, end), instead of ``warmup``."""

    def __post_init__(self) -> None:
        """Check ranges and combinations.

        Raises:
            ScenarioError: A setting is out of range or contradicts another one.
        """
        checks = (
            (1 <= self.replicas <= MAX_REPLICAS, f"replicas must lie in 1..{MAX_REPLICAS}"),
            (0 <= self.slow_replicas <= self.replicas, "more slow replicas than replicas"),
            (0 < self.slow_speed <= 1, "the slow speed must lie above 0 and be at most 1"),
            (self.join_at_s is None or self.join_at_s > 0, "the time of joining must be above 0"),
            (self.fail_at_s is None or self.fail_at_s > 0, "the time of failure must be above 0"),
            (self.join_at_s is None or self.replicas > 1, "a fleet of one cannot start empty"),
            (self.fail_at_s is None or self.replicas > 1, "a fleet of one cannot lose a replica"),
            (self.down_s > 0, "the time down must be above 0"),
            (self.brake_at_s is None or self.brake_at_s > 0, "the brake must begin above 0"),
            (
                self.restart_at_s is None or 0 < self.restarted_replicas <= self.replicas,
                "more restarted replicas than replicas",
            ),
            (self.brake_s > 0, "the time of braking must be above 0"),
            (0 < self.brake_speed <= 1, "the braked speed must lie above 0 and be at most 1"),
            (self.brake_at_s is None or self.replicas > 1, "a fleet of one cannot brake one"),
            (self.telemetry_s >= 0 and self.telemetry_delay_s >= 0, "telemetry times are negative"),
            (self.freeze_at_s is None or self.freeze_at_s > 0, "the freeze must begin above 0"),
            (self.freeze_s > 0, "the time frozen must be above 0"),
            (
                self.bytes_per_token is None or self.bytes_per_token > 0,
                "a token must have more than 0 bytes",
            ),
            (self.zone_hop_s >= 0, "the hop to another zone must not be negative"),
            (self.models >= 1, "there must be a model"),
            (self.per_endpoint_in_flight >= 0, "a limit must not be negative"),
            (
                self.calm is None or (0 <= self.calm[0] <= 1 and self.calm[1] > 0),
                "the calm share must lie in 0..1, and its factor above 0",
            ),
            (self.deadline_s is None or self.deadline_s > 0, "the deadline must be above 0"),
            (self.hold_s >= 0, "the time of waiting must not be negative"),
            (1 <= self.pickers <= MAX_PICKERS, f"pickers must lie in 1..{MAX_PICKERS}"),
            (0 <= self.warmup < 1, "the warm-up must lie in 0..1"),
            (
                self.window_s is None or 0 <= self.window_s[0] < self.window_s[1],
                "the window must begin at 0 or later and end after that",
            ),
        )
        for holds, text in checks:
            if not holds:
                raise ScenarioError(text)

    @property
    def joiner(self) -> int | None:
        """Return the index of the replica that joins late."""
        return None if self.join_at_s is None else 0

    @property
    def victim(self) -> int | None:
        """Return the index of the replica that fails."""
        return None if self.fail_at_s is None else 1

    @property
    def braked(self) -> int | None:
        """Return the index of the replica that is slow for ``brake_s``."""
        return None if self.brake_at_s is None else 1

    def frozen(self, now: float) -> bool:
        """Return whether telemetry is frozen."""
        begin = self.freeze_at_s
        return begin is not None and begin <= now < begin + self.freeze_s

    def measured(self, times: Sequence[float]) -> slice:
        """Return the slice of measured jobs, given ascending arrival times."""
        if self.window_s is None:
            return slice(int(len(times) * self.warmup), len(times))
        return slice(bisect_left(times, self.window_s[0]), bisect_left(times, self.window_s[1]))

    def hop_s(self, replica: int) -> float:
        """Return the round trip to a replica beyond that within the zone, seconds."""
        return self.zone_hop_s if 2 * replica >= self.replicas else 0.0

    def speed(self, replica: int) -> float:
        """Return the speed of a replica."""
        return self.slow_speed if replica >= self.replicas - self.slow_replicas else 1.0
