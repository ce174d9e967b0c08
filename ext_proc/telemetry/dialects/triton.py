"""The series that every Triton reports (core: ``src/metrics.cc``).

``nv_inference_pending_request_count`` is a queue only for backends that keep the request while they
work. vLLM's backend hands requests on at once, so there the gauge stays at 0 and is treated as
unknown. The same holds for other decoupled models, which a page does not identify: callers do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ext_proc.routing.values.reading import Reading
from ext_proc.telemetry.dialects.page import Families, ModelVersion, by_model, total, totals

if TYPE_CHECKING:
    from collections.abc import Mapping

PENDING: Final = "nv_inference_pending_request_count"
SUCCESS: Final = "nv_inference_request_success"
FAILURE: Final = "nv_inference_request_failure"
QUEUE: Final = "nv_inference_queue_duration_us"
COMPUTE: Final = (
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
)
VLLM: Final = "vllm:prompt_tokens_total"
FIRST_TOKENS: Final = "vllm:time_to_first_token_seconds_count"
FIRST_TOKENS_S: Final = "vllm:time_to_first_token_seconds_sum"
FAMILIES: Final = frozenset(
    {PENDING, SUCCESS, FAILURE, QUEUE, *COMPUTE, VLLM, FIRST_TOKENS, FIRST_TOKENS_S}
)


@dataclass(frozen=True, slots=True)
class Counters:
    """A model's counters on one page; ``rates`` computes rates from two of them."""

    successes: float | None = None
    queue_s: float | None = None
    """Seconds that finished requests waited in the queue, since the model was loaded."""
    compute_s: float | None = None
    """Seconds of their input, inference and output, likewise."""
    failures: Mapping[str, float] = field(default_factory=dict)
    """Failed requests by reason."""


def read(
    families: Families,
    at: float,
    decoupled: frozenset[str] = frozenset(),
    slots: Mapping[str, int] | None = None,
    batches: Mapping[str, int] | None = None,
) -> dict[ModelVersion, Reading]:
    """Return a reading per model on the page.

    Which are ``decoupled``, how many requests each runs at once (``slots``) and takes at once
    (``batches``) is known by other means.
    """
    declared, taken = slots or {}, batches or {}
    handed_on = by_model(families[VLLM]).keys()
    pending, tokens = totals(families[PENDING]), totals(families[VLLM])
    first_tokens, seconds = totals(families[FIRST_TOKENS]), totals(families[FIRST_TOKENS_S])
    named = (*families[PENDING], *families[SUCCESS])
    keys = handed_on | {sample.key for sample in named if sample.key is not None}
    return {
        key: Reading(
            at=at,
            model=key.model,
            version=key.version,
            prompt_tokens=tokens.get(key),
            first_tokens=first_tokens.get(key),
            first_tokens_s=seconds.get(key),
            slots=None if key in handed_on else declared.get(key.model),
            batch=None if key in handed_on else taken.get(key.model),
            queued=None if key in handed_on or key.model in decoupled else pending.get(key),
        )
        for key in keys
    }


def counters(
    families: Families, decoupled: frozenset[str] = frozenset()
) -> dict[ModelVersion, Counters]:
    """Return each model's counters.

    For models that hand their requests on at once, durations cover only the handing on; they are
    left out where the page or ``decoupled`` identifies such a model.
    """
    successes, queue = totals(families[SUCCESS]), totals(families[QUEUE])
    compute = [totals(families[name]) for name in COMPUTE]
    failures: dict[ModelVersion, dict[str, float]] = {}
    for key, samples in by_model(families[FAILURE]).items():
        for sample in samples:
            reason = sample.labels.get("reason")
            if reason is not None and sample.value is not None:
                by_reason = failures.setdefault(key, {})
                by_reason[reason] = by_reason.get(reason, 0.0) + sample.value
    handed_on = by_model(families[VLLM]).keys()
    found = {}
    for key in successes.keys() | failures.keys():
        timed = key not in handed_on and key.model not in decoupled
        parts = total([each.get(key) for each in compute])
        waited = queue.get(key)
        found[key] = Counters(
            successes=successes.get(key),
            queue_s=waited / 1e6 if timed and waited is not None else None,
            compute_s=parts / 1e6 if timed and parts is not None else None,
            failures=failures.get(key, {}),
        )
    return found
