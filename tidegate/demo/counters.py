"""Reads replicas' counters and the picker's pages. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_TRITON_SUCCESS: Final = "nv_inference_request_success"
"""Triton's counter per model and version; for decoupled models it lags behind the last response."""
_TOY_REQUESTS: Final = "toy_llm_requests_total"
"""The toy model's counter; exact when the client has received the last response."""
_TOY_PROMPT: Final = "toy_llm_prompt_tokens_total"
_TOY_REUSED: Final = "toy_llm_reused_tokens_total"
_WANTED: Final = (_TRITON_SUCCESS, _TOY_REQUESTS, _TOY_PROMPT, _TOY_REUSED)

_PICKS: Final = "tidegate_picker_picks_total"


@dataclass(frozen=True, slots=True)
class ReplicaCounters:
    """Counters of one replica, or the difference of two readings."""

    served: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(model, version) -> number of answered requests."""
    prompt_tokens: int = 0
    reused_tokens: int = 0

    def since(self, before: ReplicaCounters) -> ReplicaCounters:
        """Return the increase since ``before``; a counter that decreased was reset to 0."""
        return ReplicaCounters(
            {key: _grown(now, before.served.get(key, 0)) for key, now in self.served.items()},
            _grown(self.prompt_tokens, before.prompt_tokens),
            _grown(self.reused_tokens, before.reused_tokens),
        )


def read_counts(page: str) -> ReplicaCounters:
    """Parse a replica's Prometheus page; an absent series counts as 0.

    Raises:
        ValueError: The page is not in Prometheus text format.
    """
    wanted = "\n".join(line for line in page.splitlines() if line.startswith(_WANTED)) + "\n"
    served: dict[tuple[str, str], int] = {}
    exact: dict[tuple[str, str], int] = {}
    prompt = reused = 0
    for family in text_string_to_metric_families(wanted):
        for sample in family.samples:
            key = (sample.labels.get("model", ""), sample.labels.get("version", ""))
            count = int(sample.value)
            if sample.name == _TRITON_SUCCESS:
                served[key] = served.get(key, 0) + count
            elif sample.name == _TOY_REQUESTS:
                exact[key] = exact.get(key, 0) + count
            elif sample.name == _TOY_PROMPT:
                prompt += count
            elif sample.name == _TOY_REUSED:
                reused += count
    return ReplicaCounters({**served, **exact}, prompt, reused)


def reuse(counts: Iterable[ReplicaCounters]) -> float | None:
    """Return the fraction of prompt tokens found in a cache, ``None`` without prompt tokens."""
    every = list(counts)
    prompt = sum(one.prompt_tokens for one in every)
    return sum(one.reused_tokens for one in every) / prompt if prompt else None


def _grown(now: int, before: int) -> int:
    return now - before if now >= before else now


@dataclass(frozen=True, slots=True)
class Seen:
    """The picker's state of one replica; unknown is ``None``."""

    in_flight: int
    queued: float | None
    """Requests queued in the replica, summed over its models."""
    cache: float | None
    """Usage of its fullest KV cache, 0 to 1."""
    draining: bool


def read_picks(page: str) -> int:
    """Return the number of picks since the picker's start.

    Raises:
        ValueError: The page is not in Prometheus text format.
    """
    wanted = "\n".join(line for line in page.splitlines() if line.startswith(_PICKS)) + "\n"
    return sum(
        int(sample.value)
        for family in text_string_to_metric_families(wanted)
        for sample in family.samples
    )


def read_replicas(state: Mapping[str, Any]) -> dict[str, Seen]:
    """Return the state of each replica in ``/debug/state``, by endpoint id.

    A replica in several pools has one ledger entry and one set of readings, so any pool will do;
    it is draining if it drains in any pool.
    """
    seen: dict[str, Seen] = {}
    for pool in state["router"]["pools"].values():
        for name, endpoint in pool["endpoints"].items():
            readings = endpoint["readings"]
            drains = name in seen and seen[name].draining
            seen[name] = Seen(
                in_flight=int(endpoint["in_flight"]),
                queued=_sum(reading["queued"] for reading in readings),
                cache=max(
                    (one["kv_used"] for one in readings if one["kv_used"] is not None),
                    default=None,
                ),
                draining=bool(endpoint["draining"]) or drains,
            )
    return seen


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
