"""Pages of vLLM, SGLang and trtllm-serve without a Triton."""

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


def test_prompts_and_their_tokens():
    """Prompts are counted where they are counted together with their tokens."""
    page = (
        'vllm:num_requests_waiting{engine="0",model_name="m"} 0\n'
        'vllm:prompt_tokens_total{engine="0",model_name="m"} 100\n'
        'vllm:prompt_tokens_total{engine="1",model_name="m"} 50\n'
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 3\n'
    )
    (reading,) = read_all(page, 1.0).readings
    assert (reading.prompt_tokens, reading.prompts) == (150, None)
    page += 'vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 4\n'
    (reading,) = read_all(page, 1.0).readings
    assert (reading.prompt_tokens, reading.prompts) == (150, 4)
    page = (
        'sglang:num_queue_reqs{model_name="m"} 0\n'
        'sglang:prompt_tokens_total{model_name="m"} 70\n'
        'sglang:num_requests_total{model_name="m"} 2\n'
    )
    (reading,) = read_all(page, 1.0).readings
    assert (reading.prompt_tokens, reading.prompts) == (70, 2)
    page = (
        'vllm:prompt_tokens_total{model="m",version="1"} 70\n'
        'nv_inference_request_success{model="m",version="1"} 2\n'
        'nv_inference_request_success{model="other",version="1"} 2\n'
    )
    of_m, of_other = read_all(page, 1.0).readings
    assert (of_m.prompt_tokens, of_m.prompts) == (70, None)
    assert (of_other.prompt_tokens, of_other.prompts) == (None, None)


def test_first_tokens_and_their_seconds():
    """They are read from vLLM with and without Triton and from SGLang, where ranks count once."""
    for page in (
        (
            'vllm:num_requests_waiting{engine="0",model_name="m"} 0\n'
            'vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 3\n'
            'vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 1.5\n'
            'vllm:time_to_first_token_seconds_count{engine="1",model_name="m"} 1\n'
            'vllm:time_to_first_token_seconds_sum{engine="1",model_name="m"} 0.5\n'
        ),
        (
            'nv_inference_request_success{model="m",version="1"} 2\n'
            'vllm:time_to_first_token_seconds_count{model="m",version="1"} 4\n'
            'vllm:time_to_first_token_seconds_sum{model="m",version="1"} 2\n'
        ),
        (
            'sglang:num_queue_reqs{model_name="m",tp_rank="0"} 0\n'
            'sglang:num_queue_reqs{model_name="m",tp_rank="1"} 0\n'
            'sglang:time_to_first_token_seconds_count{model_name="m"} 4\n'
            'sglang:time_to_first_token_seconds_sum{model_name="m"} 2\n'
        ),
    ):
        reading = read(page)
        assert (reading.first_tokens, reading.first_tokens_s) == (4, 2.0)


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


def test_sglang_pages_of_the_cache_are_blocks():
    """Size and number count once per rank and add over schedulers; hits are tokens by source."""
    page = "".join(
        f'sglang:num_queue_reqs{{model_name="m",tp_rank="{tp}",dp_rank="{dp}"}} 0\n'
        f'sglang:page_size{{model_name="m",tp_rank="{tp}",dp_rank="{dp}"}} 16\n'
        f'sglang:num_pages{{model_name="m",tp_rank="{tp}",dp_rank="{dp}"}} 100\n'
        for tp in (0, 1)
        for dp in (0, 1)
    )
    page += "".join(
        f'sglang:cached_tokens_total{{model_name="m",cache_source="{source}"}} 32\n'
        for source in ("device", "host")
    )
    reading = read(page)
    assert (reading.kv_block_tokens, reading.kv_blocks, reading.reused_blocks) == (16, 200, 4)


def test_sglang_caches_that_differ_in_block_size_have_none():
    """A hit counted in tokens is then no number of blocks."""
    page = (
        'sglang:num_queue_reqs{model_name="m"} 0\nsglang:cached_tokens_total{model_name="m"} 8\n'
        'sglang:page_size{model_name="m",dp_rank="0"} 1\n'
        'sglang:page_size{model_name="m",dp_rank="1"} 2\n'
    )
    assert (read(page).kv_block_tokens, read(page).reused_blocks) == (None, None)


TRTLLM = """trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 3.0
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 8.0
trtllm_max_num_active_requests{engine_type="trtllm",model_name="m"} 8.0
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.25
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="m"} 400.0
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="m"} 32.0
trtllm_kv_cache_reused_blocks_total{engine_type="trtllm",model_name="m"} 12.0
"""


def test_trtllm_serve():
    """What the executor holds beyond its limit is in its queue, so the engine is not saturated."""
    reading = read(TRTLLM)
    assert (reading.queued, reading.running, reading.saturated) == (3, 8, None)
    assert (reading.kv_used, reading.kv_block_tokens, reading.kv_blocks) == (0.25, 32, 400)
    assert reading.reused_blocks == 12


def test_trtllm_serve_without_iteration_statistics():
    """Then the page has requests only: nothing about queue or cache is known."""
    page = read_all('trtllm_request_success_total{finished_reason="stop",model_name="m"} 2\n', 1.0)
    assert page.readings == ()
    assert page.successes == {ModelVersion("m", None): 2}


def test_a_counter_of_trtllm_serve_that_appears_later_is_no_restart():
    """The second counter begins lower than the first one is."""
    first = 'trtllm_num_requests_completed_total{model_name="m"} 9\n'
    both = first + 'trtllm_request_success_total{finished_reason="stop",model_name="m"} 1\n'
    assert read_all(first, 1.0).successes == read_all(both, 2.0).successes


def test_a_cache_without_blocks_is_unknown():
    """0 blocks or tokens mean that the engine has not said it yet."""
    page = TRTLLM.replace("400.0", "0.0").replace("} 32.0", "} 0.0")
    assert (read(page).kv_block_tokens, read(page).kv_blocks) == (None, None)


def test_vllm_sleeps_when_all_its_engines_do():
    """One engine that is awake serves; without the series nothing is known."""
    queue = 'vllm:num_requests_waiting{engine="0",model_name="m"} 0\n'

    def page(*awake: int) -> str:
        return queue + "".join(
            f'vllm:engine_sleep_state{{model_name="m",engine="{number}",sleep_state="{of}"}} {on}\n'
            for number, is_awake in enumerate(awake)
            for of, on in (("awake", is_awake), ("discard_all", 1))
        )

    assert [read(page(*each)).asleep for each in ((0, 0), (1, 0), (1,), ())] == [
        True,
        False,
        False,
        None,
    ]


def test_vllm_says_what_waits_for_something_else_than_room():
    """Such requests are in the queue too."""
    page = 'vllm:num_requests_waiting{model_name="m"} 7\n' + "".join(
        f'vllm:num_requests_waiting_by_reason{{model_name="m",reason="{reason}"}} {count}\n'
        for reason, count in (("capacity", 5), ("deferred", 2))
    )
    assert (read(page).queued, read(page).deferred) == (7, 2)


def test_vllm_adapters_that_only_wait_are_told_apart():
    """An adapter of which one request runs and one waits is loaded."""
    labels = 'max_lora="2",running_lora_adapters="a,b",waiting_lora_adapters="b,c"'
    page = f'vllm:num_requests_waiting{{model_name="m"}} 2\nvllm:lora_requests_info{{{labels}}} 5\n'
    reading = read(page)
    assert (reading.adapters, reading.adapters_waiting) == ({"a", "b", "c"}, {"c"})
    assert reading.adapter_slots == 2
