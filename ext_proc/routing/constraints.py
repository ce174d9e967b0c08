"""Settings of a pool that narrow or weigh its choice; values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

AdapterMode = Literal["ignore", "prefer", "require"]


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
