"""The series of the TensorRT-LLM backend (tensorrtllm_backend: ``custom_metrics_reporter.cc``).

* Queue = ``waiting``, running = ``scheduled``, cache = ``fraction`` or else ``used / max``, block
  size = ``tokens_per``; llm-d's scheduler maps them in the same way.
* ``max`` is how many requests the engine runs at once.
* ``waiting`` does not count the requests that the executor queues beyond ``max``, so ``active >=
  max`` is reported as ``saturated``.
* Cache statistics that the engine did not deliver keep their old value, 0 at the start: a pool of 0
  blocks or blocks of 0 tokens are unknown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ext_proc.routing.values.reading import Reading
from ext_proc.telemetry.dialects.page import Families, ModelVersion, total

if TYPE_CHECKING:
    from collections.abc import Mapping

REQUESTS: Final = "nv_trt_llm_request_metrics"
BLOCKS: Final = "nv_trt_llm_kv_cache_block_metrics"
GENERAL: Final = "nv_trt_llm_general_metrics"
FAMILIES: Final = frozenset({REQUESTS, BLOCKS, GENERAL})

_KIND: Final = {
    REQUESTS: "request_type",
    BLOCKS: "kv_cache_block_type",
    GENERAL: "general_type",
}

Kinds = dict[str, list[float | None]]
"""The values of a model's series, by the value of the label that tells them apart."""


def refine(
    readings: Mapping[ModelVersion, Reading], families: Families, at: float
) -> dict[ModelVersion, Reading]:
    """Return ``readings`` refined by the engine's own values."""
    refined = dict(readings)
    requests, blocks = _by_model(families, REQUESTS), _by_model(families, BLOCKS)
    for key in requests.keys() | blocks.keys():
        base = refined.get(key) or Reading(at=at, model=key.model, version=key.version)
        refined[key] = _with_blocks(_with_requests(base, requests.get(key)), blocks.get(key))
    for key, kinds in _by_model(families, GENERAL).items():
        count = total(kinds.get("iteration_counter", []))
        if count is not None and key in refined:
            refined[key] = replace(refined[key], iterations=count)
    return refined


def _by_model(families: Families, family: str) -> dict[ModelVersion, Kinds]:
    label = _KIND[family]
    found: dict[ModelVersion, Kinds] = {}
    for sample in families[family]:
        kind = sample.labels.get(label)
        if kind is not None and sample.key is not None:
            found.setdefault(sample.key, {}).setdefault(kind, []).append(sample.value)
    return found


def _with_requests(reading: Reading, kinds: Kinds | None) -> Reading:
    if kinds is None:
        # The engine is busy but does not report how much; Triton's own queue does not show it.
        return replace(reading, queued=None)
    active, most = total(kinds.get("active", [])), total(kinds.get("max", []))
    return replace(
        reading,
        queued=total(kinds.get("waiting", [])),
        running=total(kinds.get("scheduled", [])),
        slots=most or None,
        saturated=active >= most if active is not None and most else None,
    )


def _with_blocks(reading: Reading, kinds: Kinds | None) -> Reading:
    if kinds is None:
        return reading
    tokens = set(kinds.get("tokens_per", []))
    size = tokens.pop() if len(tokens) == 1 else None
    return replace(
        reading,
        kv_used=_share(kinds),
        kv_block_tokens=int(size) if size else None,
        kv_blocks=int(most) if (most := total(kinds.get("max", []))) else None,
        reused_blocks=total(kinds.get("reused", [])),
    )


def _share(kinds: Kinds) -> float | None:
    """Return the used share of the cache over all series, within 0..1."""
    used, most = total(kinds.get("used", [])), total(kinds.get("max", []))
    if most == 0:
        return None
    if used is not None and most is not None:
        return min(used / most, 1.0)
    fractions = kinds.get("fraction", [])
    whole = total(fractions)
    return None if whole is None else min(whole / len(fractions), 1.0)
