"""Parses the needed families of a page in the Prometheus text format.

Rules:

1. A series belongs to a model of a Triton if, and only if, its labels name model and version.
   Callers sum over the other labels and never select by them.
2. A value that is not finite or is negative is unknown, not 0.
3. An empty page is an error: Triton answers 200 with an empty page on every path but ``/metrics``.

Pages repeat the same series, so the parsed text of a series is cached (at most ``MEMO_SERIES``): a
page then costs a look at the start of each line and one number per series.
Source: the exposition format 0.0.4 of Prometheus.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MAX_SERIES: Final = 4096
"""Maximum needed series on a page; a page with more is rejected."""

MEMO_SERIES: Final = 16_384
"""Maximum parsed series texts that are cached, over all pages."""

MAX_SERIES_CHARS: Final = 4096
"""Maximum characters of one needed series; a page with a longer one is rejected."""

_FIRST_SAMPLE: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{.*\})?[ \t]+\S+")
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|$)')
_ESCAPED: Final = re.compile(r"\\(.)")
_ESCAPES: Final = {"n": "\n"}
_MOST_PARTS: Final = 2
"""A value, and an optional timestamp."""
_SHOWN_CHARS: Final = 60


class BadPage(ValueError):  # noqa: N818 - reads as what it is
    """The text is not a page of metrics; the message names the line."""


class ModelVersion(NamedTuple):
    """Key of per-model series."""

    model: str
    version: str | None
    """``None`` if the engine has no versions: only Triton has them."""


class SeriesSample(NamedTuple):
    """One series with its value."""

    key: ModelVersion | None
    """The Triton model of the series, ``None`` if its labels name none."""
    labels: Mapping[str, str]
    value: float | None
    """``None`` if the replica wrote no usable number."""


Families = dict[str, list[SeriesSample]]


class _Series(NamedTuple):
    name: str
    labels: Mapping[str, str]
    key: ModelVersion | None


def parse(text: str, wanted: frozenset[str]) -> Families:
    """Return the samples of the ``wanted`` families.

    Raises:
        BadPage: The page is empty, is not a page of metrics, has a broken line among the wanted
            ones or more than ``MAX_SERIES`` of them.
    """
    page = text.split("\n")
    _check_kind(page)
    families: Families = {name: [] for name in wanted}
    count = 0
    for number, line in enumerate(page, 1):
        if line[:2] == "# ":
            continue
        brace = line.find("{")
        # A name without labels ends at the first blank.
        name = line[:brace] if brace > 0 else line.partition(" ")[0]
        if name not in wanted and (line[:1] == "#" or name.rstrip() not in wanted):
            continue
        count += 1
        if count > MAX_SERIES:
            raise BadPage(f"line {number}: more than {MAX_SERIES} needed series")
        try:
            series, value = _sample(line)
        except ValueError:
            raise BadPage(
                f"line {number}: not a Prometheus sample: {line[:_SHOWN_CHARS]!r}"
            ) from None
        families[series.name].append(SeriesSample(series.key, series.labels, value))
    return families


def _check_kind(page: list[str]) -> None:
    """Reject text that is not a page of metrics, judged by its first sample."""
    for number, line in enumerate(page, 1):
        if not line or line.isspace() or line.startswith("#"):
            continue
        if _FIRST_SAMPLE.match(line) is None:
            raise BadPage(f"line {number}: not a Prometheus sample: {line[:_SHOWN_CHARS]!r}")
        return
    raise BadPage(f"line {len(page)}: the page has no sample; is it the /metrics path?")


def _sample(line: str) -> tuple[_Series, float | None]:
    """Parse one line; raise ``ValueError`` if it is not a sample."""
    end = line.rfind("}") + 1 or len(line.split(None, 1)[0])
    if end > MAX_SERIES_CHARS:
        raise ValueError(line)
    parts = line[end:].split()
    if not 0 < len(parts) <= _MOST_PARTS or "_" in parts[0]:
        raise ValueError(line)
    value = float(parts[0])
    known = math.isfinite(value) and value >= 0
    return _series(line[:end]), value if known else None


@lru_cache(maxsize=MEMO_SERIES)
def _series(text: str) -> _Series:
    """Parse a name with its labels; raise ``ValueError`` if it is not one."""
    name, brace, rest = text.partition("{")
    name = name.rstrip()
    if _NAME.fullmatch(name) is None:
        raise ValueError(text)
    labels: dict[str, str] = {}
    if brace:
        place, body = 0, rest[:-1]
        while place < len(body.rstrip()):
            found = _LABEL.match(body, place)
            if found is None:
                raise ValueError(text)
            labels[found[1]] = _ESCAPED.sub(lambda hit: _ESCAPES.get(hit[1], hit[1]), found[2])
            place = found.end()
    model, version = labels.get("model"), labels.get("version")
    key = ModelVersion(model, version) if model is not None and version is not None else None
    return _Series(name, labels, key)


def by_model(samples: Iterable[SeriesSample]) -> dict[ModelVersion, list[SeriesSample]]:
    """Group a family's samples by model and version; samples without them are left out."""
    found: dict[ModelVersion, list[SeriesSample]] = {}
    for sample in samples:
        if sample.key is not None:
            found.setdefault(sample.key, []).append(sample)
    return found


def totals(samples: Iterable[SeriesSample]) -> dict[ModelVersion, float]:
    """Sum a family per model and version; a model with an unknown part is left out."""
    sums: dict[ModelVersion, float] = {}
    unknown: set[ModelVersion] = set()
    for key, _, value in samples:
        if key is None:
            continue
        if value is None:
            unknown.add(key)
        else:
            sums[key] = sums.get(key, 0.0) + value
    for key in unknown:
        sums.pop(key, None)
    return sums


def total(values: list[float | None]) -> float | None:
    """Sum values; unknown if there is none or one of them is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def mean(values: list[float | None]) -> float | None:
    """Average shares, within 0..1; unknown if there is none or one of them is unknown."""
    whole = total(values)
    return None if whole is None else min(whole / len(values), 1.0)


def equal(values: list[float | None]) -> float | None:
    """Return a size that all series agree on; else it is unknown."""
    return values[0] if len(set(values)) == 1 else None


def by_name(
    samples: Iterable[SeriesSample], combine: Callable[[list[float | None]], float | None]
) -> dict[str, float]:
    """Combine a family per ``model_name``; samples without one are left out, as what is unknown."""
    values: dict[str, list[float | None]] = {}
    for sample in samples:
        name = sample.labels.get("model_name")
        if name is not None:
            values.setdefault(name, []).append(sample.value)
    combined = {name: combine(group) for name, group in values.items()}
    return {name: value for name, value in combined.items() if value is not None}


def count_in(text: str | None) -> int | None:
    """Parse a positive number from a label, ``None`` if it is not one."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 12:  # noqa: PLR2004 - far above any cache
        return None
    return int(text) or None
