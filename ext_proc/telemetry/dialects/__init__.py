"""A replica's Prometheus page to readings. Pure; unknown stays ``None``.

``triton`` reads what every Triton reports, ``trtllm`` what the TensorRT-LLM backend adds,
``engines`` the pages of vLLM and SGLang that serve without Triton, ``gpu`` the GPUs, ``custom``
what the fleet file declares. An engine's own words win over Triton's, which see a request as gone
once the engine has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ext_proc.telemetry.dialects import custom, engines, gpu, triton, trtllm
from ext_proc.telemetry.dialects.page import BadPage, ModelVersion, parse
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
    "read_page",
]

_OWN: Final = triton.FAMILIES | trtllm.FAMILIES | engines.FAMILIES | gpu.FAMILIES


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What to read beyond the dialects that are known by themselves."""

    declared: tuple[CustomMetric, ...] = ()
    gpus: frozenset[str] = frozenset()
    """The endpoint's GPUs on a page of DCGM, by index or UUID; empty = all."""
    families: frozenset[str] = field(init=False, default=_OWN)
    """All that is parsed."""

    def __post_init__(self) -> None:
        own = _OWN | {each.metric for each in self.declared}
        object.__setattr__(self, "families", own)


PLAIN: Final = Vocabulary()


@dataclass(frozen=True, slots=True)
class PageReadings:
    """All that one page says to a router."""

    at: float
    """When it was fetched, monotonic seconds."""
    readings: tuple[Reading, ...]
    """One per model and version, sorted by both; one without model speaks of the endpoint."""
    counters: Mapping[ModelVersion, Counters]

    @property
    def successes(self) -> dict[ModelVersion, float]:
        """Return the counters of finished requests, where they are known.

        They fall only where the model or the server was restarted.
        """
        return {
            key: each.successes for key, each in self.counters.items() if each.successes is not None
        }


def read_all(text: str, at: float, vocabulary: Vocabulary = PLAIN) -> PageReadings:
    """Read a page that was fetched at ``at`` (seconds on the monotonic clock).

    Raises:
        BadPage: It is empty, or no page of metrics.
    """
    families = parse(text, vocabulary.families)
    own = trtllm.refine(triton.read(families, at), families, at) | engines.read(families, at)
    found: dict[ModelVersion | None, Reading] = {key: own[key] for key in own}
    whole = gpu.read(families, at, vocabulary.gpus)
    if whole is not None:
        found[None] = whole
    if vocabulary.declared:
        found = custom.refine(found, families, at, vocabulary.declared)
    return PageReadings(
        at=at,
        readings=tuple(found[key] for key in sorted(found, key=_order)),
        counters=triton.counters(families) | engines.counters(families),
    )


def _order(key: ModelVersion | None) -> tuple[str, str]:
    return ("", "") if key is None else (key.model, key.version or "")


def read_page(text: str, at: float) -> tuple[Reading, ...]:
    """Return the readings of a page that was fetched at ``at``.

    Raises:
        BadPage: It is empty, or no page of metrics.
    """
    return read_all(text, at).readings
