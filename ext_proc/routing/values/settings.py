"""Settings of a pool that affect routing; values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CustomMetric:
    """A series of the replicas' metrics pages that the fleet file maps to a field of readings."""

    field: str
    """Name of the field of ``Reading``."""
    metric: str
    labels: tuple[tuple[str, str], ...] = ()
    """Labels that the series must have."""
    scale: float = 1.0
    """Factor applied to the value, e.g. 0.01 for percent."""


@dataclass(frozen=True, slots=True)
class SlowStart:
    """Envoy's ramp: ``max(min_weight, (age / window) ** (1 / aggression))``."""

    window_s: float = 0.0
    aggression: float = 1.0
    min_weight: float = 0.1


@dataclass(frozen=True, slots=True)
class Outlier:
    """When a failing replica is ejected, and for how long; see ``ejection``."""

    consecutive_failures: int = 3
    interval_s: float = 5.0
    """Seconds in which the weight of a result in the failure share falls to 1/e, about a third."""
    base_ejection_s: float = 10.0
    max_ejection_percent: int = 50
    failure_percent: float = 50.0
    """Failure share that ejects, percent; 0 = no ejection by failure share."""
    latency_factor: float = 0.0
    """First-byte time that ejects, as a multiple of the peers'; 0 = no ejection by latency."""
    frozen_after_s: float = 30.0
    """Seconds without progress that eject; 0 = no ejection of frozen replicas."""


USUAL_SLOW_START: Final = SlowStart()

USUAL_OUTLIER: Final = Outlier()


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """Requirements of a model on a replica."""

    model: str
    memory_bytes: int = 0
    """GPU memory that must be free on a replica without the model; 0 = not checked."""
    device: str = ""
    """The device that the model needs or prefers; empty = any."""
    device_required: bool = False
    """Whether other devices are excluded; otherwise they are the second choice."""


@dataclass(frozen=True, slots=True)
class GpuWeights:
    """Weights of ``gpu-composite``; only their ratios matter."""

    queue: float = 0.4
    gpu: float = 0.3
    kv: float = 0.2
    latency: float = 0.1


@dataclass(frozen=True, slots=True)
class LearnedSettings:
    """When ``learned`` may decide, and how much it explores."""

    min_decisions: int = 10_000
    """Minimum number of finished requests between two evaluations."""
    explore: float = 0.01
    """Share of requests on which it tries an alternative, at most 0.02."""


USUAL_WEIGHTS: Final = GpuWeights()

USUAL_LEARNING: Final = LearnedSettings()
