"""Metrics pages of an emulated replica in the formats of vLLM and Triton. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.emulator.dialects import MODEL

if TYPE_CHECKING:
    from bench.emulator.replica import EmulatedReplica


def vllm(replica: EmulatedReplica) -> str:
    """Return the page of a vLLM server: queue, batch, cache, prompts, start of the process."""
    counters = replica.counters
    engine = replica.engine
    labels = f'{{engine="0",model_name="{MODEL}"}}'
    ended = f'{{engine="0",finished_reason="stop",model_name="{MODEL}"}}'
    config = f'{{block_size="{engine.block_tokens}",num_gpu_blocks="{engine.cache_blocks}"}}'
    first, first_s = replica.first_tokens
    series = (
        ("vllm:num_requests_waiting", "gauge", labels, replica.queued),
        ("vllm:num_requests_running", "gauge", labels, replica.running),
        ("vllm:kv_cache_usage_perc", "gauge", labels, replica.kv_used),
        ("vllm:prefix_cache_queries_total", "counter", labels, counters.prompt),
        ("vllm:prefix_cache_hits_total", "counter", labels, counters.hit),
        ("vllm:prompt_tokens_total", "counter", labels, counters.prompt),
        ("vllm:generation_tokens_total", "counter", labels, counters.generated),
        ("vllm:request_success_total", "counter", ended, counters.finished),
        ("vllm:cache_config_info", "gauge", config, 1),
        ("process_start_time_seconds", "gauge", "", replica.started_unix_s),
    )
    times = "vllm:time_to_first_token_seconds"
    lines = [
        f"# TYPE {name} {kind}\n{name}{where} {value}\n" for name, kind, where, value in series
    ]
    lines.append(f"# TYPE {times} histogram\n")
    lines.append(f"{times}_count{labels} {first}\n{times}_sum{labels} {first_s}\n")
    return "".join(lines)


def triton(replica: EmulatedReplica) -> str:
    """Return the page of a Triton server whose backend holds its requests."""
    labels = f'{{model="{MODEL}",version="1"}}'
    finished = replica.counters.finished
    series = (
        ("nv_inference_pending_request_count", "gauge", replica.queued),
        ("nv_inference_request_success", "counter", finished),
        ("nv_inference_count", "counter", finished),
    )
    return "".join(
        f"# TYPE {name} {kind}\n{name}{labels} {value}\n" for name, kind, value in series
    )


PAGES = {"vllm": vllm, "triton": triton}
