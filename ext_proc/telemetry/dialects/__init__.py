"""Parses a replica's Prometheus page into readings. Pure; unknown values stay ``None``.

``triton`` reads what every Triton reports, ``trtllm`` what the TensorRT-LLM backend adds,
``engines`` the pages of engines that serve without Triton (a module each), ``gpu`` the GPUs, and
``custom`` the series declared in the fleet file. An engine's own values win over Triton's: Triton
counts a request as gone once the engine has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ext_proc.telemetry.dialects import custom, engines, gpu, triton, trtllm
from ext_proc.telemetry.dialects.page import BadPage, Families, ModelVersion, parse
from ext_proc.telemetry.dialects.triton import Counters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.routing.values.reading import Reading
    from ext_proc.routing.values.settings import CustomMetric

__all__ = [
    "BadPage",
    "Counters",
    "ModelVersion",
    "PageReadings",
    "Vocabulary",
    "read_all",
]

PROCESS_START: Final = "process_start_time_seconds"
"""Start of the server's process, Unix seconds, as Prometheus' clients export it."""
_OWN: Final = (
    frozenset({PROCESS_START}) | triton.FAMILIES | trtllm.FAMILIES | engines.FAMILIES | gpu.FAMILIES
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The series to read beyond those of the built-in dialects."""

    declared: tuple[CustomMetric, ...] = ()
    gpus: frozenset[str] = frozenset()
    """The endpoint's GPUs on a DCGM page, by index or UUID; empty = all."""
    decoupled: frozenset[str] = frozenset()
    """Models of a Triton that take each request at once, so that nothing is pending."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """Requests that models of a Triton run at once, as their configurations declare."""
    batches: Mapping[str, int] = field(default_factory=dict)
    """Requests that they take at once where an instance gets free, likewise."""
    families: frozenset[str] = field(init=False, default=_OWN)
    """Names of all metric families to parse."""

    def __post_init__(self) -> None:
        own = _OWN | {each.metric for each in self.declared}
        object.__setattr__(self, "families", own)


PLAIN: Final = Vocabulary()


@dataclass(frozen=True, slots=True)
class PageReadings:
    """All values of one page that are relevant to a router."""

    at: float
    """Time of the fetch, monotonic seconds."""
    readings: tuple[Reading, ...]
    """One per model and version, sorted by both; one without a model describes the endpoint."""
    counters: Mapping[ModelVersion, Counters]
    started_unix_s: float | None = None
    """When the server's process started; ``None`` = the page does not tell, or tells several."""

    @property
    def successes(self) -> dict[ModelVersion, float]:
        """Return the counters of finished requests where they are known.

        They decrease if the model or the server was restarted.
        """
        return {
            key: each.successes for key, each in self.counters.items() if each.successes is not None
        }


def read_all(text: str, at: float, vocabulary: Vocabulary = PLAIN) -> PageReadings:
    """Parse a page that was fetched at ``at`` (seconds on the monotonic clock).

    Raises:
        BadPage: The page is empty or is not a page of metrics.
    """
    families = parse(text, vocabulary.families)
    own = trtllm.refine(
        triton.read(families, at, vocabulary.decoupled, vocabulary.slots, vocabulary.batches),
        families,
        at,
    ) | engines.read(families, at)
    found: dict[ModelVersion | None, Reading] = {key: own[key] for key in own}
    whole = gpu.read(families, at, vocabulary.gpus)
    if whole is not None:
        found[None] = whole
    if vocabulary.declared:
        found = custom.refine(found, families, at, vocabulary.declared)
    return PageReadings(
        at=at,
        readings=tuple(found[key] for key in sorted(found, key=_order)),
        counters=triton.counters(families, vocabulary.decoupled) | engines.counters(families),
        started_unix_s=_started(families),
    )


def _started(families: Families) -> float | None:
    values = {sample.value for sample in families.get(PROCESS_START, ())}
    return values.pop() if len(values) == 1 else None


def _order(key: ModelVersion | None) -> tuple[str, str]:
    return ("", "") if key is None else (key.model, key.version or "")
