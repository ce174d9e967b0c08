"""The page of ``trtllm-serve``, TensorRT-LLM's own server, at ``/prometheus/metrics``.

Source: ``tensorrt_llm/metrics/collector.py`` at commit 050f80d. Its series name the model by
``model_name`` and have no versions. Rules:

1. Queue, running and cache come from the engine's iterations and are on the page only where it was
   started with ``enable_iter_perf_stats``. Several series of a model are added.
2. ``num_requests_waiting`` counts what the executor queues beyond its limit too, unlike
   ``waiting`` of Triton's TensorRT-LLM backend: the engine is never ``saturated``.
3. A cache of 0 blocks, or with blocks of 0 tokens, is unknown.
4. Finished requests are counted twice, by two settings. The larger counter is used: neither falls
   while the server lives, and one may appear after the other.
5. ``time_to_first_token_seconds`` is not used: it is written when a request has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.values.reading import Reading
from ext_proc.telemetry.dialects.page import Families, ModelVersion, by_name, equal, mean, total
from ext_proc.telemetry.dialects.triton import Counters

if TYPE_CHECKING:
    from collections.abc import Mapping

WAITING: Final = "trtllm_num_requests_waiting"
RUNNING: Final = "trtllm_num_requests_running"
CACHE: Final = "trtllm_kv_cache_utilization"
BLOCKS: Final = "trtllm_kv_cache_max_blocks"
BLOCK_TOKENS: Final = "trtllm_kv_cache_tokens_per_block"
REUSED: Final = "trtllm_kv_cache_reused_blocks_total"
SUCCESS: Final = "trtllm_request_success_total"
COMPLETED: Final = "trtllm_num_requests_completed_total"
FAMILIES: Final = frozenset(
    {WAITING, RUNNING, CACHE, BLOCKS, BLOCK_TOKENS, REUSED, SUCCESS, COMPLETED}
)


def read(families: Families, at: float) -> dict[ModelVersion, Reading]:
    """Return a reading per model of the server."""
    waiting, running, blocks, reused = (
        by_name(families[family], total) for family in (WAITING, RUNNING, BLOCKS, REUSED)
    )
    cache = by_name(families[CACHE], mean)
    sizes = by_name(families[BLOCK_TOKENS], equal)
    return {
        ModelVersion(name, None): Reading(
            at=at,
            model=name,
            queued=waiting.get(name),
            running=running.get(name),
            kv_used=cache.get(name),
            kv_block_tokens=int(sizes.get(name, 0.0)) or None,
            kv_blocks=int(blocks.get(name, 0.0)) or None,
            reused_blocks=reused.get(name),
        )
        for name in waiting.keys() | running.keys() | cache.keys()
    }


def counters(families: Families) -> Mapping[ModelVersion, Counters]:
    """Return each model's counter of finished requests."""
    done, completed = (by_name(families[family], total) for family in (SUCCESS, COMPLETED))
    return {
        ModelVersion(name, None): Counters(
            successes=max(done.get(name, 0.0), completed.get(name, 0.0))
        )
        for name in done.keys() | completed.keys()
    }
