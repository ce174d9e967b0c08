"""Settings of the toy model, from ``parameters`` in config.pbtxt and the environment."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

ENVIRONMENT_PREFIX = "TOY_LLM_"


@dataclass(frozen=True, slots=True)
class Settings:
    """Size and speed of the engine. All times are multiplied by ``time_scale``."""

    time_scale: float = 1.0
    """Factor on all times; 0 removes all simulated delays."""
    prefill_us_per_token: float = 300.0
    decode_ms_base: float = 5.0
    decode_ms_per_running: float = 0.5
    chunk_tokens: int = 256
    """Maximum number of prompt tokens computed in one iteration."""
    max_running: int = 16
    """Number of batch slots."""
    max_waiting: int = 1024
    """Maximum queue length; further requests are rejected as unavailable."""
    max_tokens: int = 4096
    """Maximum number of tokens that a request may generate."""
    cache_blocks: int = 1024
    """Size of the block cache, blocks of 16 tokens."""
    stats_period_ms: float = 100.0
    """Interval of updates of the gauges, milliseconds."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ValueError: A setting is out of range.
        """
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
    """Read settings; the environment overrides parameters (``TOY_LLM_CACHE_BLOCKS`` etc.).

    Raises:
        ValueError: A value is not a number or out of range, or a parameter is unknown; the
            message names it.
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
