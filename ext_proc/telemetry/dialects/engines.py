"""The table of engines that serve OpenAI's API themselves, each by a module.

A module has ``FAMILIES``, the names of its series, ``read`` and ``counters``. A replica is one
engine, so at most one of them finds anything on a page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ext_proc.telemetry.dialects import sglang, trtllm_serve, vllm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.routing.values.reading import Reading
    from ext_proc.telemetry.dialects.page import Families, ModelVersion
    from ext_proc.telemetry.dialects.triton import Counters


class Dialect(Protocol):
    """What the module of an engine has."""

    @property
    def FAMILIES(self) -> frozenset[str]:  # noqa: N802 - a constant of the module
        """Names of its series."""

    def read(self, families: Families, at: float) -> Mapping[ModelVersion, Reading]:
        """Return a reading per model of the server."""

    def counters(self, families: Families) -> Mapping[ModelVersion, Counters]:
        """Return the counters of each model."""


ENGINES: Final[tuple[Dialect, ...]] = (vllm, sglang, trtllm_serve)
FAMILIES: Final = frozenset().union(*(each.FAMILIES for each in ENGINES))


def read(families: Families, at: float) -> dict[ModelVersion, Reading]:
    """Return a reading per model that such an engine serves."""
    return {key: found for each in ENGINES for key, found in each.read(families, at).items()}


def counters(families: Families) -> dict[ModelVersion, Counters]:
    """Return each model's counters."""
    return {key: found for each in ENGINES for key, found in each.counters(families).items()}
