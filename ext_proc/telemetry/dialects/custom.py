"""Maps series that the fleet file declares to fields of a reading.

A series counts if its labels include the declared ones. Counts of several series are added, shares
are averaged, and a size must be equal in all. A series that names no model (``model`` with
``version``, or ``model_name``) describes the whole endpoint. Declared series win over the other
dialects.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ext_proc.routing.values.reading import Reading
from ext_proc.telemetry.dialects.page import Families, ModelVersion, SeriesSample, mean, total

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ext_proc.routing.values.settings import CustomMetric

COUNTS: Final = frozenset({"queued", "running", "reused_blocks"})
SHARES: Final = frozenset({"kv_used", "gpu_used", "gpu_memory_used"})
SIZES: Final = frozenset({"kv_block_tokens", "kv_blocks"})
DECLARABLE: Final = COUNTS | SHARES | SIZES
"""Fields of a reading that may be declared."""


def refine(
    readings: Mapping[ModelVersion | None, Reading],
    families: Families,
    at: float,
    declared: Sequence[CustomMetric],
) -> dict[ModelVersion | None, Reading]:
    """Return ``readings`` with the declared series' values; key ``None`` is the whole endpoint."""
    refined = dict(readings)
    for each in declared:
        values: dict[ModelVersion | None, list[float | None]] = {}
        for sample in families[each.metric]:
            if all(sample.labels.get(name) == value for name, value in each.labels):
                scaled = None if sample.value is None else sample.value * each.scale
                values.setdefault(_key(sample), []).append(scaled)
        for key, group in values.items():
            base = refined.get(key)
            if base is None:
                base = Reading(at, key.model, key.version) if key is not None else Reading(at)
            refined[key] = _with(base, each.field, group)
    return refined


def _key(sample: SeriesSample) -> ModelVersion | None:
    if sample.key is not None:
        return sample.key
    name = sample.labels.get("model_name")
    return None if name is None else ModelVersion(name, None)


def _with(reading: Reading, field: str, values: list[float | None]) -> Reading:
    value: Any
    if field in COUNTS:
        value = total(values)
    elif field in SHARES:
        value = mean(values)
    else:
        same = set(values)
        only = same.pop() if len(same) == 1 else None
        value = int(only) if only else None
    return replace(reading, **{field: value})
