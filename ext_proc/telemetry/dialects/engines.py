"""The pages of engines that serve OpenAI's API themselves: vLLM and SGLang.

Their series name the model by ``model_name`` and have no versions.

* vLLM (``vllm/v1/metrics/loggers.py``): one series per ``engine`` of a data-parallel server. Queues
  are added; the cache share is the mean, because the engines are alike.
* SGLang (``python/sglang/srt/observability/metrics_collector.py``): where all ranks of tensor or
  pipeline parallelism report, they report the same queue, so only the largest value counts. With
  priority scheduling the series with an empty ``priority`` is the total of those with one
  (``_log_gauge_queue_count``, at commit 016d860), which are left out. Series that differ in
  other labels are added.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ext_proc.routing.values.reading import Reading
from ext_proc.telemetry.dialects.page import Families, ModelVersion, SeriesSample, mean, total
from ext_proc.telemetry.dialects.triton import Counters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

VLLM_WAITING: Final = "vllm:num_requests_waiting"
VLLM_RUNNING: Final = "vllm:num_requests_running"
VLLM_CACHE: Final = "vllm:kv_cache_usage_perc"
VLLM_CACHE_V0: Final = "vllm:gpu_cache_usage_perc"
"""Name before vLLM 0.10."""
VLLM_CONFIG: Final = "vllm:cache_config_info"
VLLM_HITS: Final = "vllm:prefix_cache_hits_total"
"""In tokens."""
VLLM_LORA: Final = "vllm:lora_requests_info"
"""The adapters of running and waiting requests, as lists in labels. The value is the time at which
the lists were valid; series of earlier lists stay on the page."""
VLLM_SUCCESS: Final = "vllm:request_success_total"
SGLANG_WAITING: Final = "sglang:num_queue_reqs"
SGLANG_RUNNING: Final = "sglang:num_running_reqs"
SGLANG_CACHE: Final = "sglang:token_usage"
SGLANG_SUCCESS: Final = "sglang:num_requests_total"

FAMILIES: Final = frozenset(
    {
        VLLM_WAITING,
        VLLM_RUNNING,
        VLLM_CACHE,
        VLLM_CACHE_V0,
        VLLM_CONFIG,
        VLLM_HITS,
        VLLM_LORA,
        VLLM_SUCCESS,
        SGLANG_WAITING,
        SGLANG_RUNNING,
        SGLANG_CACHE,
        SGLANG_SUCCESS,
    }
)

_PRIORITY: Final = "priority"
_NOT_APART: Final = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", _PRIORITY})
_RANKS: Final = _NOT_APART - {_PRIORITY}


def read(families: Families, at: float) -> dict[ModelVersion, Reading]:
    """Return a reading per model that such an engine serves."""
    waiting = _by_name(families[VLLM_WAITING], total) | _by_name(
        _once_per_rank(families[SGLANG_WAITING]), total
    )
    running = _by_name(families[VLLM_RUNNING], total) | _by_name(
        _once_per_rank(families[SGLANG_RUNNING]), total
    )
    cache = (
        _by_name(families[VLLM_CACHE_V0], mean)
        | _by_name(families[VLLM_CACHE], mean)
        | _by_name(_once_per_rank(families[SGLANG_CACHE]), mean)
    )
    found = {
        ModelVersion(name, None): Reading(
            at=at,
            model=name,
            queued=waiting.get(name),
            running=running.get(name),
            kv_used=cache.get(name),
        )
        for name in waiting.keys() | running.keys() | cache.keys()
    }
    return _with_adapters(_with_config(found, families), families)


def counters(families: Families) -> dict[ModelVersion, Counters]:
    """Return each model's counter of finished requests."""
    done = _by_name(families[VLLM_SUCCESS], total) | _by_name(
        _once_per_rank(families[SGLANG_SUCCESS]), total
    )
    return {ModelVersion(name, None): Counters(successes=count) for name, count in done.items()}


def _by_name(
    samples: Iterable[SeriesSample], combine: Callable[[list[float | None]], float | None]
) -> dict[str, float]:
    values: dict[str, list[float | None]] = {}
    for sample in samples:
        name = sample.labels.get("model_name")
        if name is not None:
            values.setdefault(name, []).append(sample.value)
    combined = {name: combine(group) for name, group in values.items()}
    return {name: value for name, value in combined.items() if value is not None}


def _once_per_rank(samples: Iterable[SeriesSample]) -> list[SeriesSample]:
    """Keep one of the series that differ only in rank: the largest, or unknown if any is.

    Of series that differ in priority, the total is kept, or all where there is none.
    """
    found = list(samples)
    totals = {_but(each, _NOT_APART) for each in found if not each.labels.get(_PRIORITY)}
    kept: dict[tuple[tuple[str, str], ...], SeriesSample] = {}
    for sample in found:
        if sample.labels.get(_PRIORITY) and _but(sample, _NOT_APART) in totals:
            continue
        group = _but(sample, _RANKS)
        known = kept.get(group)
        if (
            known is None
            or sample.value is None
            or (known.value is not None and sample.value > known.value)
        ):
            kept[group] = sample
    return list(kept.values())


def _but(sample: SeriesSample, names: frozenset[str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(item for item in sample.labels.items() if item[0] not in names))


def _with_config(
    found: dict[ModelVersion, Reading], families: Families
) -> dict[ModelVersion, Reading]:
    """Add vLLM's cache configuration; it names no model, so the page must have only one."""
    sizes = {_count(sample.labels.get("block_size")) for sample in families[VLLM_CONFIG]}
    blocks = [_count(sample.labels.get("num_gpu_blocks")) for sample in families[VLLM_CONFIG]]
    if len(found) != 1 or len(sizes) != 1:
        return found
    ((key, reading),) = found.items()
    size = sizes.pop()
    hits = _by_name(families[VLLM_HITS], total).get(key.model)
    whole = total([None if each is None else float(each) for each in blocks])
    return {
        key: replace(
            reading,
            kv_block_tokens=size,
            kv_blocks=None if whole is None else int(whole),
            reused_blocks=hits / size if hits is not None and size else None,
        )
    }


def _with_adapters(
    found: dict[ModelVersion, Reading], families: Families
) -> dict[ModelVersion, Reading]:
    """Add the LoRA adapters in use; the series names no model, so the page must have only one."""
    reported = [each for each in families[VLLM_LORA] if each.value is not None]
    if len(found) != 1 or not reported:
        return found
    ((key, reading),) = found.items()
    labels = max(reported, key=lambda each: each.value or 0.0).labels
    names = [
        name.strip()
        for label in ("running_lora_adapters", "waiting_lora_adapters")
        for name in labels.get(label, "").split(",")
    ]
    return {key: replace(reading, adapters=frozenset(names) - {""})}


def _count(text: str | None) -> int | None:
    """Parse a positive number from a label, ``None`` if it is not one."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 12:  # noqa: PLR2004 - far above any cache
        return None
    return int(text) or None
