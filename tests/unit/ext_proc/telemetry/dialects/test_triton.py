"""The series that every Triton reports."""

from __future__ import annotations

from ext_proc.telemetry.dialects import Vocabulary, read_all
from ext_proc.telemetry.dialects.page import ModelVersion

PENDING = "nv_inference_pending_request_count"
SUCCESS = "nv_inference_request_success"


def line(family: str, value: float, model: str = "m", version: str = "1", **more: str) -> str:
    labels = {"model": model, "version": version, **more}
    return family + "{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + f"}} {value}\n"


def test_pending_is_summed_over_other_labels():
    """A model's series differ in further labels; all of them count."""
    (reading,) = read_all(
        line(PENDING, 2, gpu_uuid="a") + line(PENDING, 3, gpu_uuid="b"), at=7.0
    ).readings
    assert (reading.at, reading.model, reading.version, reading.queued) == (7.0, "m", "1", 5)
    assert (reading.running, reading.kv_used, reading.saturated) == (None, None, None)


def test_models_and_versions_are_apart():
    """Each model and version has its own reading."""
    page = line(PENDING, 1) + line(PENDING, 2, version="2") + line(PENDING, 3, model="n")
    readings = read_all(page, at=0).readings
    assert [(r.model, r.version, r.queued) for r in readings] == [
        ("m", "1", 1),
        ("m", "2", 2),
        ("n", "1", 3),
    ]


def test_a_gauge_of_one_model_does_not_leak():
    """A model without the gauge stays unknown beside one that has it."""
    readings = read_all(line(PENDING, 4) + line(SUCCESS, 9, model="n"), at=0).readings
    assert [(r.model, r.queued) for r in readings] == [("m", 4), ("n", None)]


def test_a_series_that_is_unknown_makes_the_sum_unknown():
    """A queue of which a part is unknown is unknown."""
    page = line(PENDING, 4, gpu_uuid="a") + line(PENDING, float("nan"), gpu_uuid="b")
    assert read_all(page, at=0).readings[0].queued is None


def test_vllm_queue_is_unknown():
    """The vLLM backend hands requests on at once: its pending count of 0 is not a queue."""
    readings = read_all(
        line(PENDING, 0) + line("vllm:prompt_tokens_total", 5) + line(PENDING, 1, model="n"), at=0
    ).readings
    assert [(r.model, r.queued) for r in readings] == [("m", None), ("n", 1)]


def test_the_queue_of_a_decoupled_model_is_unknown():
    """It takes each request at once; a page does not say so, the model's configuration does."""
    page = line(PENDING, 0) + line(PENDING, 1, model="n") + line(SUCCESS, 3)
    found = read_all(page, 0.0, Vocabulary(decoupled=frozenset({"m"})))
    assert [(r.model, r.queued) for r in found.readings] == [("m", None), ("n", 1)]


def test_successes():
    """Finished requests are counted per model and version, where known."""
    page = (
        line(SUCCESS, 2, gpu_uuid="a")
        + line(SUCCESS, 3, gpu_uuid="b")
        + line(SUCCESS, float("nan"), model="n")
    )
    assert read_all(page, at=0).successes == {ModelVersion("m", "1"): 5}
