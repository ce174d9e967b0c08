"""The Prometheus text format, of which only the needed families are parsed.

Laws:
* A series counts for a model and version exactly if its labels say both; other labels are summed
  over by the caller, never chosen from.
* A value that is not finite or is negative is unknown, not 0.
* An empty page is an error: Triton answers 200 with nothing on every path but ``/metrics``.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_SERIES: Final = 4096
"""Needed series on a page; a page with more is refused."""

_FIRST_SAMPLE: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{.*\})?[ \t]+\S+")
_SHOWN_CHARS: Final = 60


class BadPage(ValueError):  # noqa: N818 - reads as what it is
    """The text is no page of metrics; the message names the line."""


class ModelVersion(NamedTuple):
    """What per-model series are chosen by."""

    model: str
    version: str


class Sample(NamedTuple):
    """One series of a model."""

    key: ModelVersion
    labels: Mapping[str, str]
    value: float | None
    """``None`` where the replica wrote no usable number."""


Families = dict[str, list[Sample]]


def parse(text: str, wanted: frozenset[str]) -> Families:
    """Return the samples of the ``wanted`` families that name a model and a version.

    Raises:
        BadPage: The page is empty, is no page of metrics, has a broken line among the wanted ones
            or more than ``MAX_SERIES`` of them.
    """
    page = text.split("\n")
    _check_kind(page)
    families: Families = {name: [] for name in wanted}
    lines = list(_wanted_lines(page, wanted))
    if len(lines) > MAX_SERIES:
        raise BadPage(f"line {lines[MAX_SERIES][0]}: more than {MAX_SERIES} series of interest")
    try:
        _collect("\n".join(line for _, line in lines), families)
    except (ValueError, IndexError, KeyError):
        raise _culprit(lines) from None
    return families


def _check_kind(page: list[str]) -> None:
    """Refuse what is no page of metrics by its first sample."""
    for number, line in enumerate(page, 1):
        if not line or line.isspace() or line.startswith("#"):
            continue
        if _FIRST_SAMPLE.match(line) is None:
            raise BadPage(f"line {number}: no Prometheus sample: {line[:_SHOWN_CHARS]!r}")
        return
    raise BadPage(f"line {len(page)}: the page has no sample; is it the /metrics path?")


def _wanted_lines(page: list[str], wanted: frozenset[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(page, 1):
        brace = line.find("{")
        if brace > 0 and line[:brace].rstrip() in wanted:
            yield number, line


def _collect(text: str, families: Families) -> None:
    for family in text_string_to_metric_families(text + "\n"):
        for sample in family.samples:
            labels = sample.labels
            if "model" not in labels or "version" not in labels:
                continue
            value = sample.value if math.isfinite(sample.value) and sample.value >= 0 else None
            key = ModelVersion(labels["model"], labels["version"])
            families[sample.name].append(Sample(key, labels, value))


def _culprit(lines: list[tuple[int, str]]) -> BadPage:
    """Find the first line that cannot be parsed by itself."""
    for number, line in lines:
        try:
            _collect(line, {line[: line.find("{")].rstrip(): []})
        except (ValueError, IndexError, KeyError):
            return BadPage(f"line {number}: no Prometheus sample: {line[:_SHOWN_CHARS]!r}")
    return BadPage("the page's series contradict each other")


def total(values: list[float | None]) -> float | None:
    """Add up series; unknown where there is none or one of them is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
