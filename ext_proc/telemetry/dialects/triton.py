"""What every Triton reports (core: ``src/metrics.cc``).

``nv_inference_pending_request_count`` is a queue only for backends that keep the request while they
work. vLLM's backend hands it on at once, so there the gauge rests at 0 and is taken as unknown; the
same holds for other decoupled models, which a page does not tell apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.types import Reading
from ext_proc.telemetry.dialects.page import Families, ModelVersion, total

if TYPE_CHECKING:
    from collections.abc import Mapping

PENDING: Final = "nv_inference_pending_request_count"
SUCCESS: Final = "nv_inference_request_success"
VLLM: Final = "vllm:prompt_tokens_total"
FAMILIES: Final = frozenset({PENDING, SUCCESS, VLLM})


def read(families: Families, at: float) -> dict[ModelVersion, Reading]:
    """Return a reading per model that the page names."""
    handed_on = {sample.key for sample in families[VLLM]}
    pending: dict[ModelVersion, list[float | None]] = {}
    for sample in families[PENDING]:
        pending.setdefault(sample.key, []).append(sample.value)
    keys = handed_on | pending.keys() | {sample.key for sample in families[SUCCESS]}
    return {
        key: Reading(
            at=at,
            model=key.model,
            version=key.version,
            queued=None if key in handed_on else total(pending.get(key, [])),
        )
        for key in keys
    }


def successes(families: Families) -> Mapping[ModelVersion, float]:
    """Return each model's counter of finished requests, where it is known."""
    found: dict[ModelVersion, list[float | None]] = {}
    for sample in families[SUCCESS]:
        found.setdefault(sample.key, []).append(sample.value)
    sums = {key: total(values) for key, values in found.items()}
    return {key: value for key, value in sums.items() if value is not None}
