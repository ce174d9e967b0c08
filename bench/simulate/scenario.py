"""What is simulated: the fleet, its troubles and what the router learns when."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.engine import EngineConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_REPLICAS = 10_000
MAX_PICKERS = 64


class ScenarioError(ValueError):
    """A scenario that makes no sense; the text names the setting."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One fleet.

    Raises:
        ScenarioError: A setting is out of range or contradicts another.
    """

    replicas: int = 8
    engine: EngineConfig = field(default_factory=EngineConfig)
    slow_replicas: int = 0
    """The last so many run at ``slow_speed``."""
    slow_speed: float = 0.5
    capacities_known: bool = True
    """The pool states each replica's speed as its capacity; else the router must find out."""
    join_at_s: float | None = None
    """When the first replica joins, with an empty cache; ``None`` = it is there from the start."""
    fail_at_s: float | None = None
    """When the second replica dies; ``None`` = never."""
    down_s: float = 60.0
    """How long it is gone; it returns with an empty cache."""
    brake_at_s: float | None = None
    """When the second replica suddenly works at ``brake_speed``, unsaid; ``None`` = never."""
    brake_s: float = 60.0
    """How long it does."""
    brake_speed: float = 0.25
    telemetry_s: float = 1.0
    """Seconds between two readings of a replica; 0 = none at all."""
    telemetry_delay_s: float = 0.1
    """Age of a reading when the router gets it."""
    freeze_at_s: float | None = None
    """When all readings stop to change, though they come as before; ``None`` = never."""
    freeze_s: float = 30.0
    """How long they stay so."""
    slow_start_s: float = 0.0
    """Ramp window of the pool."""
    index_blocks: int | None = None
    """The pool's ``index_blocks``; ``None`` = as many as a replica's cache has."""
    pickers: int = 1
    """Pickers side by side: each decides on a share of the jobs, drawn by chance, and knows of the
    others only what readings tell."""
    warmup: float = 0.1
    """Share of the jobs at the start that are not measured, as caches are cold."""
    window_s: tuple[float, float] | None = None
    """Measure the jobs that arrive from the first second up to the second one, and no warm-up."""

    def __post_init__(self) -> None:
        """Check what the types cannot say."""
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
            (self.brake_s > 0, "the time of braking must be above 0"),
            (0 < self.brake_speed <= 1, "the braked speed must lie above 0 and be at most 1"),
            (self.brake_at_s is None or self.replicas > 1, "a fleet of one cannot brake one"),
            (self.telemetry_s >= 0 and self.telemetry_delay_s >= 0, "telemetry times are negative"),
            (self.freeze_at_s is None or self.freeze_at_s > 0, "the freeze must begin above 0"),
            (self.freeze_s > 0, "the time frozen must be above 0"),
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
        """Return which replica joins late."""
        return None if self.join_at_s is None else 0

    @property
    def victim(self) -> int | None:
        """Return which replica fails."""
        return None if self.fail_at_s is None else 1

    @property
    def braked(self) -> int | None:
        """Return which replica is suddenly slow for a while."""
        return None if self.brake_at_s is None else 1

    def frozen(self, now: float) -> bool:
        """Tell whether readings stand still."""
        begin = self.freeze_at_s
        return begin is not None and begin <= now < begin + self.freeze_s

    def measured(self, times: Sequence[float]) -> slice:
        """Return which of the jobs that arrive at these rising times are measured."""
        if self.window_s is None:
            return slice(int(len(times) * self.warmup), len(times))
        return slice(bisect_left(times, self.window_s[0]), bisect_left(times, self.window_s[1]))

    def speed(self, replica: int) -> float:
        """Return the speed of a replica."""
        return self.slow_speed if replica >= self.replicas - self.slow_replicas else 1.0
