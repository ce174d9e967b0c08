"""The series of the TensorRT-LLM backend."""

from __future__ import annotations

import pytest

from ext_proc.telemetry.dialects import read_all

PENDING = "nv_inference_pending_request_count"


def requests(model: str = "m", gpu: str = "", **values: float) -> str:
    return "".join(
        f'nv_trt_llm_request_metrics{{gpu_uuid="{gpu}",model="{model}",request_type="{kind}",'
        f'version="1"}} {value}\n'
        for kind, value in values.items()
    )


def blocks(model: str = "m", gpu: str = "", **values: float) -> str:
    return "".join(
        f'nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="{kind}",gpu_uuid="{gpu}",'
        f'version="1",model="{model}"}} {value}\n'
        for kind, value in values.items()
    )


def read(page: str):
    (reading,) = read_all(page, at=0).readings
    return reading


def test_mapping():
    """Queue, running, cache share, block size and reuse come from their own kinds."""
    reading = read(
        requests(active=5, max=8, scheduled=3, waiting=2, context=1)
        + blocks(max=100, used=25, fraction=0.25, tokens_per=64, reused=7)
    )
    assert (reading.queued, reading.running, reading.saturated) == (2, 3, False)
    assert (reading.kv_used, reading.kv_block_tokens, reading.reused_blocks) == (0.25, 64, 7)


def test_the_engines_queue_wins_over_tritons():
    """Triton's own pending count does not describe an engine's queue."""
    pending = f'{PENDING}{{model="m",version="1"}} 0\n'
    assert read(pending + requests(waiting=9)).queued == 9
    assert read(pending + blocks(max=1)).queued is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"active": 8, "max": 8}, True),
        ({"active": 7, "max": 8}, False),
        ({"active": 7}, None),
        ({"max": 8}, None),
        ({"active": 0, "max": 0}, None),
    ],
)
def test_saturated(values, expected):
    """An engine is full at ``max`` active requests, unknown if either number is."""
    assert read(requests(**values)).saturated is expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"used": 3, "max": 100}, 0.03),
        ({"fraction": 0.5}, 0.5),
        ({"fraction": 7}, 1.0),
        ({"used": 9, "max": 3}, 1.0),
        ({"used": 3}, None),
        ({"used": 0, "max": 0, "fraction": 0}, None),
        ({"tokens_per": 0}, None),
    ],
)
def test_cache_share(values, expected):
    """The share is a fraction or computed, within 0..1; a pool of 0 blocks is unknown."""
    reading = read(blocks(**values))
    assert reading.kv_used == expected
    assert reading.kv_block_tokens is None


def test_several_gpus():
    """Counts are summed, shares weighed, a common block size kept."""
    reading = read(
        requests(gpu="a", waiting=1)
        + requests(gpu="b", waiting=2)
        + blocks(gpu="a", used=10, max=100, tokens_per=32)
        + blocks(gpu="b", used=50, max=100, tokens_per=32)
    )
    assert (reading.queued, reading.kv_used, reading.kv_block_tokens) == (3, 0.3, 32)
    assert read(blocks(gpu="a", fraction=0.2) + blocks(gpu="b", fraction=0.4)).kv_used == (
        pytest.approx(0.3)
    )
    differing = blocks(gpu="a", tokens_per=32) + blocks(gpu="b", tokens_per=64)
    assert read(differing).kv_block_tokens is None


def test_one_model_does_not_leak_into_another():
    """The statistics of one engine do not affect the other model."""
    pending = f'{PENDING}{{model="n",version="1"}} 4\n'
    readings = read_all(requests(waiting=9) + blocks(used=1, max=2) + pending, at=0).readings
    assert [(r.model, r.queued, r.kv_used) for r in readings] == [("m", 9, 0.5), ("n", 4, None)]


def test_a_series_without_its_kind_is_passed_over():
    """A series without its kind label is not guessed."""
    page = 'nv_trt_llm_request_metrics{model="m",version="1"} 4\n' + requests(waiting=1)
    assert read(page).queued == 1


def test_iterations_are_counted_for_a_model_that_is_known_otherwise():
    """The general family alone does not make a reading."""
    general = (
        'nv_trt_llm_general_metrics{general_type="iteration_counter",model="m",version="1"} 42\n'
        'nv_trt_llm_general_metrics{general_type="timestamp",model="m",version="1"} 9\n'
    )
    assert read(requests(waiting=0) + general).iterations == 42
    assert read(requests(waiting=0)).iterations is None
