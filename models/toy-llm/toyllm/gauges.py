"""The engine's load as Prometheus series, with the names of Triton's TensorRT-LLM backend.

Names and label values follow triton-inference-server/tensorrtllm_backend,
``custom_metrics_reporter.cc``, so a scraper for that backend also reads this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toyllm.blocks import TOKENS_PER_BLOCK

if TYPE_CHECKING:
    from toyllm.engine import EngineLoad, Token

_FAMILIES = {
    "nv_trt_llm_request_metrics": (
        "request_type",
        ("active", "max", "scheduled", "context", "waiting"),
    ),
    "nv_trt_llm_kv_cache_block_metrics": (
        "kv_cache_block_type",
        ("max", "free", "used", "tokens_per", "reused", "fraction"),
    ),
    "nv_trt_llm_general_metrics": ("general_type", ("timestamp", "iteration_counter")),
}
_COUNTERS = {
    "toy_llm_requests_total": "Requests answered to the end",
    "toy_llm_prompt_tokens_total": "Prompt tokens of requests that got a first token",
    "toy_llm_reused_tokens_total": "Of those prompt tokens, the ones found in the prefix cache",
}


class Gauges:
    """The series of one model version.

    Args:
        pb_utils: Triton's ``triton_python_backend_utils``.
        model: Value of the label ``model``.
        version: Value of the label ``version``.
    """

    def __init__(self, pb_utils: Any, model: str, version: str) -> None:
        labels = {"model": model, "version": version}
        # Keep references to the families: Triton drops a family with its Python object.
        self._families = []
        self._gauges: dict[tuple[str, str], Any] = {}
        for name, (label, values) in _FAMILIES.items():
            family = pb_utils.MetricFamily(
                name=name,
                description=name.removeprefix("nv_").replace("_", " "),
                kind=pb_utils.MetricFamily.GAUGE,
            )
            self._families.append(family)
            for value in values:
                self._gauges[name, value] = family.Metric(labels={**labels, label: value})
        self._counters = {}
        for name, description in _COUNTERS.items():
            family = pb_utils.MetricFamily(
                name=name, description=description, kind=pb_utils.MetricFamily.COUNTER
            )
            self._families.append(family)
            self._counters[name] = family.Metric(labels=labels)

    def set(self, load: EngineLoad, timestamp_us: int) -> None:
        """Update all gauges. Each update uses Triton's shared memory, so call this on a timer."""
        values = {
            "nv_trt_llm_request_metrics": (
                load.active,
                load.max_requests,
                load.scheduled,
                load.context,
                load.waiting,
            ),
            "nv_trt_llm_kv_cache_block_metrics": (
                load.max_blocks,
                load.free_blocks,
                load.used_blocks,
                TOKENS_PER_BLOCK,
                load.reused_blocks,
                load.used_blocks / load.max_blocks,
            ),
            "nv_trt_llm_general_metrics": (timestamp_us, load.iterations),
        }
        for name, (_, labels) in _FAMILIES.items():
            for label, value in zip(labels, values[name], strict=True):
                self._gauges[name, label].set(value)

    def count(self, token: Token) -> None:
        """Count a first or last token; call this before the token is sent.

        A client that has received an answer then finds it counted.
        """
        if token.position == 0:
            self._counters["toy_llm_prompt_tokens_total"].increment(token.input_tokens)
            self._counters["toy_llm_reused_tokens_total"].increment(token.cached_tokens)
        if token.last:
            self._counters["toy_llm_requests_total"].increment(1)
