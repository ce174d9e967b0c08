"""Pages of vLLM and SGLang without a Triton."""

from __future__ import annotations

from ext_proc.telemetry.dialects import ModelVersion, read_all


def read(page):
    (reading,) = read_all(page, 1.0).readings
    return reading


def test_vllm_engines_of_one_server():
    """Queues of data-parallel engines add up, the cache share is their mean."""
    page = "".join(
        f'vllm:num_requests_waiting{{engine="{engine}",model_name="m"}} {2 + engine}\n'
        f'vllm:num_requests_running{{engine="{engine}",model_name="m"}} 4\n'
        f'vllm:kv_cache_usage_perc{{engine="{engine}",model_name="m"}} {0.2 * engine}\n'
        f'vllm:cache_config_info{{block_size="16",engine="{engine}",num_gpu_blocks="100"}} 1\n'
        f'vllm:prefix_cache_hits_total{{engine="{engine}",model_name="m"}} 160\n'
        for engine in (0, 1)
    )
    reading = read(page)
    assert (reading.model, reading.version) == ("m", None)
    assert (reading.queued, reading.running, reading.kv_used) == (5, 8, 0.1)
    assert (reading.kv_block_tokens, reading.kv_blocks, reading.reused_blocks) == (16, 200, 20)


def test_vllm_cache_of_several_models_is_unknown():
    """The cache's configuration names no model, so with several models it is not used."""
    page = (
        'vllm:num_requests_waiting{model_name="a"} 1\nvllm:num_requests_waiting{model_name="b"} 2\n'
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1\n'
    )
    readings = read_all(page, 1.0).readings
    assert [(r.model, r.queued, r.kv_block_tokens) for r in readings] == [
        ("a", 1, None),
        ("b", 2, None),
    ]


def test_sglang_ranks_count_once():
    """All ranks of one scheduler report its queue; separate schedulers add up."""
    page = "".join(
        f'sglang:num_queue_reqs{{model_name="m",tp_rank="{tp}",dp_rank="{dp}"}} {3 + dp}\n'
        f'sglang:num_running_reqs{{model_name="m",tp_rank="{tp}",dp_rank="{dp}"}} 1\n'
        f'sglang:token_usage{{model_name="m",tp_rank="{tp}",dp_rank="{dp}"}} 0.5\n'
        for tp in (0, 1)
        for dp in (0, 1)
    )
    reading = read(page)
    assert (reading.queued, reading.running, reading.kv_used) == (7, 2, 0.5)


def test_sglang_priorities_count_once():
    """With priority scheduling the series with an empty priority is the total of the others."""
    page = "".join(
        f'sglang:num_queue_reqs{{model_name="m",priority="{priority}",tp_rank="{tp}"}} {count}\n'
        f'sglang:num_running_reqs{{model_name="m",priority="{priority}",tp_rank="{tp}"}} 1\n'
        for priority, count in (("", 5), ("0", 2), ("7", 3))
        for tp in (0, 1)
    )
    reading = read(page)
    assert (reading.queued, reading.running) == (5, 1)


def test_sglang_priorities_without_a_total_add_up():
    """Only a total that is there makes the others superfluous."""
    page = "".join(
        f'sglang:num_queue_reqs{{model_name="m",priority="{priority}"}} 2\n'
        for priority in ("0", "7")
    )
    assert read(page).queued == 4


def test_a_rank_without_a_number_is_unknown():
    """If one rank's number is unusable, the scheduler's is unknown."""
    page = (
        'sglang:num_queue_reqs{model_name="m",tp_rank="0"} 3\n'
        'sglang:num_queue_reqs{model_name="m",tp_rank="1"} NaN\n'
        'sglang:num_queue_reqs{model_name="m",tp_rank="2"} 4\n'
        'sglang:num_running_reqs{model_name="m"} 1\n'
    )
    assert read(page).queued is None


def test_finished_requests():
    """Counters over all reasons reveal restarts."""
    page = (
        'vllm:num_requests_waiting{model_name="m"} 1\n'
        'vllm:request_success_total{finished_reason="stop",model_name="m"} 3\n'
        'vllm:request_success_total{finished_reason="length",model_name="m"} 4\n'
    )
    assert read_all(page, 1.0).successes == {ModelVersion("m", None): 7}


def test_the_newest_list_of_adapters_counts():
    """Running and waiting adapters count; earlier lists on the page are ignored."""
    lora = 'vllm:lora_requests_info{max_lora="4",running_lora_adapters="'
    page = (
        'vllm:num_requests_waiting{model_name="m"} 1\n'
        f'{lora}old",waiting_lora_adapters=""}} 100\n'
        f'{lora}fr,de",waiting_lora_adapters="it"}} 101\n'
    )
    assert read(page).adapters == {"fr", "de", "it"}
    assert read(page + f'{lora}",waiting_lora_adapters=""}} 102\n').adapters == frozenset()
    assert read('vllm:num_requests_waiting{model_name="m"} 1\n').adapters is None
