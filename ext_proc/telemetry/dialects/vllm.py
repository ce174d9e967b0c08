"""The page of vLLM serving without Triton (``vllm/v1/metrics/loggers.py``, 0.32.0).

Its series name the model by ``model_name`` and have no versions. Rules:

1. There is one series per ``engine`` of a data-parallel server. Queues are added; the cache share
   is the mean, because the engines are alike.
2. ``asleep`` is true where every engine sleeps (``/sleep``): none of them computes then. Such a
   server still answers its health probe.
3. ``deferred`` is the part of the queue that waits for something else than room: a LoRA slot, a
   transfer of KV blocks. It is contained in ``queued``.
4. The cache configuration and the LoRA adapters name no model, so they are used only where the page
   has one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ext_proc.routing.values.reading import Reading
from ext_proc.telemetry.dialects.page import (
    Families,
    ModelVersion,
    by_name,
    count_in,
    mean,
    total,
)
from ext_proc.telemetry.dialects.triton import Counters

if TYPE_CHECKING:
    from collections.abc import Mapping

WAITING: Final = "vllm:num_requests_waiting"
REASONS: Final = "vllm:num_requests_waiting_by_reason"
RUNNING: Final = "vllm:num_requests_running"
CACHE: Final = "vllm:kv_cache_usage_perc"
CACHE_V0: Final = "vllm:gpu_cache_usage_perc"
"""Name before vLLM 0.10."""
CONFIG: Final = "vllm:cache_config_info"
HITS: Final = "vllm:prefix_cache_hits_total"
"""In tokens."""
LORA: Final = "vllm:lora_requests_info"
"""The adapters of running and waiting requests, as lists in labels. The value is the time at which
the lists were valid; series of earlier lists stay on the page."""
SLEEP: Final = "vllm:engine_sleep_state"
SUCCESS: Final = "vllm:request_success_total"
PROMPT_TOKENS: Final = "vllm:prompt_tokens_total"
FIRST_TOKENS: Final = "vllm:time_to_first_token_seconds_count"
"""Counts a prompt when its tokens are counted; ``SUCCESS`` counts it at its end, so does not tell
how many prompts the tokens are of."""
FIRST_TOKENS_S: Final = "vllm:time_to_first_token_seconds_sum"
FAMILIES: Final = frozenset(
    {
        WAITING,
        REASONS,
        RUNNING,
        CACHE,
        CACHE_V0,
        CONFIG,
        HITS,
        LORA,
        SLEEP,
        SUCCESS,
        PROMPT_TOKENS,
        FIRST_TOKENS,
        FIRST_TOKENS_S,
    }
)


def read(families: Families, at: float) -> dict[ModelVersion, Reading]:
    """Return a reading per model of the server."""
    waiting = by_name(families[WAITING], total)
    running = by_name(families[RUNNING], total)
    cache = by_name(families[CACHE_V0], mean) | by_name(families[CACHE], mean)
    deferred = by_name(
        (each for each in families[REASONS] if each.labels.get("reason") == "deferred"), total
    )
    awake = by_name(
        (each for each in families[SLEEP] if each.labels.get("sleep_state") == "awake"), total
    )
    tokens = by_name(families[PROMPT_TOKENS], total)
    prompts = by_name(families[FIRST_TOKENS], total)
    seconds = by_name(families[FIRST_TOKENS_S], total)
    found = {
        ModelVersion(name, None): Reading(
            at=at,
            model=name,
            prompt_tokens=tokens.get(name),
            prompts=prompts.get(name),
            first_tokens=prompts.get(name),
            first_tokens_s=seconds.get(name),
            queued=waiting.get(name),
            running=running.get(name),
            deferred=deferred.get(name),
            asleep=None if name not in awake else awake[name] == 0,
            kv_used=cache.get(name),
        )
        for name in waiting.keys() | running.keys() | cache.keys()
    }
    if len(found) != 1:
        return found
    ((key, reading),) = found.items()
    return {key: _with_adapters(_with_config(reading, key, families), families)}


def counters(families: Families) -> Mapping[ModelVersion, Counters]:
    """Return each model's counter of finished requests."""
    done = by_name(families[SUCCESS], total)
    return {ModelVersion(name, None): Counters(successes=count) for name, count in done.items()}


def _with_config(reading: Reading, key: ModelVersion, families: Families) -> Reading:
    sizes = {count_in(sample.labels.get("block_size")) for sample in families[CONFIG]}
    blocks = [count_in(sample.labels.get("num_gpu_blocks")) for sample in families[CONFIG]]
    if len(sizes) != 1:
        return reading
    size = sizes.pop()
    hits = by_name(families[HITS], total).get(key.model)
    whole = total([None if each is None else float(each) for each in blocks])
    return replace(
        reading,
        kv_block_tokens=size,
        kv_blocks=None if whole is None else int(whole),
        reused_blocks=hits / size if hits is not None and size else None,
    )


def _with_adapters(reading: Reading, families: Families) -> Reading:
    reported = [each for each in families[LORA] if each.value is not None]
    if not reported:
        return reading
    labels = max(reported, key=lambda each: each.value or 0.0).labels
    running, waiting = (
        frozenset(name.strip() for name in labels.get(label, "").split(",")) - {""}
        for label in ("running_lora_adapters", "waiting_lora_adapters")
    )
    return replace(
        reading,
        adapters=running | waiting,
        adapters_waiting=waiting - running,
        adapter_slots=count_in(labels.get("max_lora")),
    )
