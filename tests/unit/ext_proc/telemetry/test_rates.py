"""Counters of two pages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ext_proc.telemetry.dialects import read_all
from ext_proc.telemetry.rates import MAX_MODELS, Rates


def page(at, done, queue_us=0, compute_us=0, model="m", **failed):
    labels = f'model="{model}",version="1"'
    text = (
        f"nv_inference_request_success{{{labels}}} {done}\n"
        f"nv_inference_queue_duration_us{{{labels}}} {queue_us}\n"
        f"nv_inference_compute_input_duration_us{{{labels}}} 0\n"
        f"nv_inference_compute_infer_duration_us{{{labels}}} {compute_us}\n"
        f"nv_inference_compute_output_duration_us{{{labels}}} 0\n"
    )
    text += "".join(
        f'nv_inference_request_failure{{{labels},reason="{reason}"}} {count}\n'
        for reason, count in failed.items()
    )
    return read_all(text, at)


def test_times_per_request():
    """Queue and compute time are those of the requests that ended between two pages."""
    rates = Rates()
    (first,) = rates.take(page(1.0, 10, 5_000_000, 7_000_000)).readings
    assert (first.queue_s, first.compute_s) == (None, None)
    (second,) = rates.take(page(2.0, 14, 6_000_000, 7_400_000)).readings
    assert (second.queue_s, second.compute_s) == (0.25, pytest.approx(0.1))


def test_nothing_ended():
    """Without a finished request the times are unknown, not 0."""
    rates = Rates()
    rates.take(page(1.0, 10, 5))
    (reading,) = rates.take(page(2.0, 10, 5)).readings
    assert (reading.queue_s, reading.compute_s, reading.failures_per_s) == (None, None, ())


def test_failures_by_reason():
    """Failures are per second and by reason; unchanged reasons are left out."""
    rates = Rates()
    rates.take(page(1.0, 1, BACKEND=2, OTHER=4))
    (reading,) = rates.take(page(3.0, 1, BACKEND=5, OTHER=4)).readings
    assert reading.failures_per_s == (("BACKEND", 1.5),)


def test_a_restart_is_seen_and_nothing_is_computed_across_it():
    """A success counter that fell is a restart; the next page starts anew."""
    rates = Rates()
    assert not rates.take(page(1.0, 10, 100)).restarted
    rated = rates.take(page(2.0, 4, 200, BACKEND=9))
    assert rated.restarted
    assert rated.readings[0].queue_s is None
    assert rated.readings[0].failures_per_s == ()


def since(page, started):
    """Return a page with the start of its process, Unix seconds."""
    return replace(page, started_unix_s=started)


def test_the_same_process_has_not_restarted():
    """A counter that fell in a process that runs on is a reset, across which nothing is known."""
    rates = Rates()
    rates.take(since(page(1.0, 10, 100), 1e9))
    rated = rates.take(since(page(2.0, 4, 200), 1e9))
    assert not rated.restarted
    assert rated.readings[0].queue_s is None
    assert rates.take(since(page(3.0, 2), 1e9 + 5)).restarted


@pytest.mark.parametrize(("before", "after"), [(None, 1e9), (1e9, None), (None, None)])
def test_a_start_that_is_not_told_on_both_pages_proves_nothing(before, after):
    """Without both times, the counter decides."""
    rates = Rates()
    rates.take(since(page(1.0, 10), before))
    assert rates.take(since(page(2.0, 4), after)).restarted


def two(at, one, other):
    """Return a page with two models."""
    return read_all(
        f'nv_inference_request_success{{model="m",version="1"}} {one}\n'
        f'nv_inference_queue_duration_us{{model="m",version="1"}} {one}000000\n'
        f'nv_inference_request_success{{model="n",version="1"}} {other}\n'
        f'nv_inference_queue_duration_us{{model="n",version="1"}} {other}000000\n',
        at,
    )


def test_a_model_that_was_loaded_again_is_no_restart():
    """Its counter fell, another one went on, and the connection is the same: one process."""
    rates = Rates()
    rates.take(two(1.0, 10, 5))
    rated = rates.take(two(2.0, 0, 7), kept=True)
    assert not rated.restarted
    assert [each.queue_s for each in rated.readings] == [None, 1.0]
    assert not rates.take(two(3.0, 1, 7), kept=True).restarted


@pytest.mark.parametrize(
    ("one", "other", "kept"),
    [(0, 7, False), (0, 0, True), (0, 4, True)],
    ids=["another connection", "both fell to zero", "both fell"],
)
def test_counters_that_fell_are_a_restart(one, other, kept):
    """On another connection, or where no model's counter went on: a proxy keeps connections."""
    rates = Rates()
    rates.take(two(1.0, 10, 5))
    assert rates.take(two(2.0, one, other), kept=kept).restarted


def test_a_model_without_requests_proves_nothing():
    """Its counter was zero before, so a new process would show the same."""
    rates = Rates()
    rates.take(two(1.0, 10, 0))
    assert rates.take(two(2.0, 0, 3), kept=True).restarted


def test_the_start_is_read_from_the_page():
    """Prometheus' clients export it; several values (several processes) tell nothing."""
    assert read_all("process_start_time_seconds 1.7e9\n", 1.0).started_unix_s == 1.7e9
    two = 'process_start_time_seconds{pid="1"} 1\nprocess_start_time_seconds{pid="2"} 2\n'
    assert read_all(two, 1.0).started_unix_s is None
    assert read_all("up 1\n", 1.0).started_unix_s is None


def test_a_model_that_left_is_remembered():
    """A restarted server shows a model late; its counter still reveals the restart."""
    rates = Rates()
    rates.take(page(1.0, 10))
    assert not rates.take(page(2.0, 1, model="n")).restarted
    assert rates.take(page(3.0, 9)).restarted


def test_models_are_bounded():
    """Beyond the bound further models have no rates, and the known ones keep theirs."""
    rates = Rates()
    for index in range(MAX_MODELS + 1):
        rates.take(page(1.0, 1, model=f"m{index}"))
    assert len(rates) == MAX_MODELS


def test_durations_of_a_model_that_hands_on_are_unknown():
    """Triton's durations do not describe requests that vLLM's backend accepted at once."""
    vllm = 'vllm:prompt_tokens_total{model="m",version="1"} 5\n'
    rates = Rates()
    for at, done in ((1.0, 1), (2.0, 5)):
        text = (
            f'nv_inference_request_success{{model="m",version="1"}} {done}\n'
            f'nv_inference_queue_duration_us{{model="m",version="1"}} {done}000\n{vllm}'
        )
        (reading,) = rates.take(read_all(text, at)).readings
    assert reading.queue_s is None
