"""GPU load, from Triton's own series or from NVIDIA's DCGM exporter.

* Triton (core: ``src/metrics.cc``): ``nv_gpu_*`` by ``gpu_uuid``, the GPUs of its own process.
* DCGM exporter (``etc/default-counters.csv``): ``DCGM_FI_*`` by ``gpu`` and ``UUID``, all GPUs of
  the host, so the endpoint declares which are its own. The engine-active ratio is preferred to
  GPU_UTIL, which only means that some kernel ran.

Utilization is the mean over the GPUs, memory the used share of their sum. Free memory is that of
the emptiest GPU, because a model rarely spans several unless configured to. XID is the last error
of any of them; the exporter repeats it until the GPU is reset, and 0 means that there was none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.values.reading import Reading
from ext_proc.telemetry.dialects.page import Families, SeriesSample, mean, total

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

UTILIZATION: Final = "nv_gpu_utilization"
MEMORY_TOTAL: Final = "nv_gpu_memory_total_bytes"
MEMORY_USED: Final = "nv_gpu_memory_used_bytes"
DCGM_ACTIVE: Final = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
"""Ratio, 0..1."""
DCGM_UTILIZATION: Final = "DCGM_FI_DEV_GPU_UTIL"
"""Percent."""
DCGM_USED: Final = "DCGM_FI_DEV_FB_USED"
DCGM_FREE: Final = "DCGM_FI_DEV_FB_FREE"
DCGM_XID: Final = "DCGM_FI_DEV_XID_ERRORS"
FAMILIES: Final = frozenset(
    {
        UTILIZATION,
        MEMORY_TOTAL,
        MEMORY_USED,
        DCGM_ACTIVE,
        DCGM_UTILIZATION,
        DCGM_USED,
        DCGM_FREE,
        DCGM_XID,
    }
)

MIB: Final = 2**20
"""The exporter reports memory in MiB, Triton in bytes."""
_NAMES: Final = ("gpu", "UUID", "gpu_uuid")


def read(families: Families, at: float, gpus: frozenset[str] = frozenset()) -> Reading | None:
    """Return the reading of an endpoint's GPUs, ``None`` if the page has none.

    Args:
        families: The parsed page.
        at: Time of the fetch.
        gpus: The endpoint's GPUs by index or UUID; empty = all on the page.
    """
    if not any(map(families.__getitem__, FAMILIES)):
        return None
    of = {name: _values(families[name], gpus) for name in FAMILIES}
    percent = [None if each is None else each / 100 for each in of[DCGM_UTILIZATION]]
    busy = of[UTILIZATION] or of[DCGM_ACTIVE] or percent
    used, whole = total(of[MEMORY_USED]), total(of[MEMORY_TOTAL])
    if used is None or whole is None:
        used, free = total(of[DCGM_USED]), total(of[DCGM_FREE])
        whole = None if used is None or free is None else used + free
    faults = [int(each) for each in of[DCGM_XID] if each is not None]
    reading = Reading(
        at=at,
        gpu_used=mean(busy),
        gpu_memory_used=min(used / whole, 1.0) if used is not None and whole else None,
        gpu_memory_free=_free(of),
        gpu_xid=max(faults, default=None),
    )
    return None if reading == Reading(at=at) else reading


def _free(of: Mapping[str, list[float | None]]) -> float | None:
    """Return the free bytes of the emptiest GPU."""
    used, whole = of[MEMORY_USED], of[MEMORY_TOTAL]
    if used and len(used) == len(whole):
        pairs = zip(used, whole, strict=True)
        free = [most - now for now, most in pairs if now is not None and most is not None]
    else:
        free = [each * MIB for each in of[DCGM_FREE] if each is not None]
    return max(free, default=None)


def _values(samples: Iterable[SeriesSample], gpus: frozenset[str]) -> list[float | None]:
    return [
        sample.value
        for sample in samples
        if not gpus or any(sample.labels.get(name) in gpus for name in _NAMES)
    ]
