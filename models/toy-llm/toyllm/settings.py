"""The toy model's settings: from ``parameters`` in config.pbtxt, overridden by the environment."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

ENVIRONMENT_PREFIX = "TOY_LLM_"


@dataclass(frozen=True, slots=True)
class Settings:
    """How large and how fast the engine is. All times are multiplied by ``time_scale``."""

    time_scale: float = 1.0
    """0 computes as fast as the machine can."""
    prefill_us_per_token: float = 300.0
    decode_ms_base: float = 5.0
    decode_ms_per_running: float = 0.5
    chunk_tokens: int = 256
    """Most prompt tokens computed in one iteration."""
    max_running: int = 16
    """Batch slots."""
    max_waiting: int = 1024
    """Requests that may wait for a slot; more are refused as unavailable."""
    max_tokens: int = 4096
    """Most tokens that one request may ask for."""
    cache_blocks: int = 1024
    """Blocks of 16 tokens that the engine's memory holds."""
    stats_period_ms: float = 100.0
    """How often the gauges are renewed."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in (
            "time_scale",
            "prefill_us_per_token",
            "decode_ms_base",
            "decode_ms_per_running",
        ):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        for name in ("chunk_tokens", "max_running", "max_waiting", "max_tokens", "cache_blocks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 1 <= self.stats_period_ms < float("inf"):
            raise ValueError(f"stats_period_ms is {self.stats_period_ms}; it must be at least 1")


def read_settings(parameters: Mapping[str, str], environment: Mapping[str, str]) -> Settings:
    """Read settings; ``TOY_LLM_CACHE_BLOCKS`` in the environment wins over ``cache_blocks``.

    Raises:
        ValueError: a value is no number or out of range, or a parameter is unknown; the text
            names it.
    """
    defaults = asdict(Settings())
    known: dict[str, type[float]] = {name: type(value) for name, value in defaults.items()}
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise ValueError(f"unknown parameter {unknown[0]!r}; known are {', '.join(known)}")
    values: dict[str, Any] = {}
    for name, kind in known.items():
        text = environment.get(ENVIRONMENT_PREFIX + name.upper(), parameters.get(name))
        if text is None:
            continue
        try:
            values[name] = kind(text)
        except ValueError:
            raise ValueError(f"{name} is {text!r}; it must be a number ({kind.__name__})") from None
    return Settings(**values)
