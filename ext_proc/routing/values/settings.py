"""Settings of a pool that shape routing; values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

AdapterMode = Literal["ignore", "prefer", "require"]


@dataclass(frozen=True, slots=True)
class CustomMetric:
    """A series that the fleet file declares to say something that readings have."""

    field: str
    """Field of ``Reading``."""
    metric: str
    labels: tuple[tuple[str, str], ...] = ()
    """The series must have these."""
    scale: float = 1.0
    """The value is multiplied by it, e.g. 0.01 for percent."""


@dataclass(frozen=True, slots=True)
class SlowStart:
    """Envoy's ramp: ``max(min_weight, (age / window) ** (1 / aggression))``."""

    window_s: float = 0.0
    aggression: float = 1.0
    min_weight: float = 0.1


@dataclass(frozen=True, slots=True)
class Outlier:
    """When a replica that fails is left alone, and for how long; see ``ejection``."""

    consecutive_failures: int = 3
    interval_s: float = 5.0
    """Time in which a result loses two thirds of its weight in the share of failures."""
    base_ejection_s: float = 10.0
    max_percent: int = 50
    failure_percent: float = 50.0
    """0 = shares eject nobody."""
    latency_factor: float = 0.0
    """How many times later than its peers' first bytes; 0 = slowness ejects nobody."""
    frozen_after_s: float = 30.0
    """0 = standing still ejects nobody."""


USUAL_SLOW_START: Final = SlowStart()

USUAL_OUTLIER: Final = Outlier()


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """What a model needs of a replica."""

    model: str
    memory_bytes: int = 0
    """GPU memory that must be free where it is not loaded; 0 = not looked at."""
    device: str = ""
    """The device that it wants; empty = any."""
    device_required: bool = False
    """Other devices are never used; otherwise they are only the second choice."""


@dataclass(frozen=True, slots=True)
class GpuWeights:
    """Weights of ``gpu-composite``; only their ratios count."""

    queue: float = 0.4
    gpu: float = 0.3
    kv: float = 0.2
    latency: float = 0.1


@dataclass(frozen=True, slots=True)
class LearnedSettings:
    """When ``learned`` may act, and how much it tries out."""

    min_decisions: int = 10_000
    """Finished requests between two judgements."""
    explore: float = 0.01
    """Share of requests on which it tries an alternative, at most 0.02."""


USUAL_WEIGHTS: Final = GpuWeights()

USUAL_LEARNING: Final = LearnedSettings()
