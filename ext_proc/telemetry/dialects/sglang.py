"""The page of SGLang (``python/sglang/srt/observability/metrics_collector.py``, commit 016d860).

Its series name the model by ``model_name`` and have no versions. Rules:

1. Where all ranks of tensor or pipeline parallelism report, they report the same queue and the same
   cache, so only the largest value counts. Schedulers of data parallelism are added.
2. With priority scheduling the series with an empty ``priority`` is the total of those with one
   (``_log_gauge_queue_count``), which are left out.
3. A page of the cache is a block. ``cached_tokens_total`` counts tokens by where they were found
   (device, host, storage): wherever it was, none was computed again. It appears with the first hit.
4. The cache share is ``token_usage``, the fullest of the pools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.values.reading import Reading
from ext_proc.telemetry.dialects.page import (
    Families,
    ModelVersion,
    SeriesSample,
    by_name,
    equal,
    mean,
    total,
)
from ext_proc.telemetry.dialects.triton import Counters

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WAITING: Final = "sglang:num_queue_reqs"
RUNNING: Final = "sglang:num_running_reqs"
CACHE: Final = "sglang:token_usage"
PAGE_SIZE: Final = "sglang:page_size"
PAGES: Final = "sglang:num_pages"
CACHED: Final = "sglang:cached_tokens_total"
SUCCESS: Final = "sglang:num_requests_total"
PROMPT_TOKENS: Final = "sglang:prompt_tokens_total"
FIRST_TOKENS: Final = "sglang:time_to_first_token_seconds_count"
FIRST_TOKENS_S: Final = "sglang:time_to_first_token_seconds_sum"
FAMILIES: Final = frozenset(
    {
        WAITING,
        RUNNING,
        CACHE,
        PAGE_SIZE,
        PAGES,
        CACHED,
        SUCCESS,
        PROMPT_TOKENS,
        FIRST_TOKENS,
        FIRST_TOKENS_S,
    }
)

_PRIORITY: Final = "priority"
_NOT_APART: Final = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", _PRIORITY})
_RANKS: Final = _NOT_APART - {_PRIORITY}


def read(families: Families, at: float) -> dict[ModelVersion, Reading]:
    """Return a reading per model of the server."""
    waiting, running, pages = (
        by_name(_once_per_rank(families[family]), total) for family in (WAITING, RUNNING, PAGES)
    )
    cache = by_name(_once_per_rank(families[CACHE]), mean)
    sizes = by_name(families[PAGE_SIZE], equal)
    cached, counted, prompts, first_tokens, seconds = (
        by_name(_once_per_rank(families[family]), total)
        for family in (CACHED, PROMPT_TOKENS, SUCCESS, FIRST_TOKENS, FIRST_TOKENS_S)
    )
    found = {}
    for name in waiting.keys() | running.keys() | cache.keys():
        size, tokens = sizes.get(name), cached.get(name)
        found[ModelVersion(name, None)] = Reading(
            at=at,
            model=name,
            queued=waiting.get(name),
            running=running.get(name),
            prompt_tokens=counted.get(name),
            prompts=prompts.get(name),
            first_tokens=first_tokens.get(name),
            first_tokens_s=seconds.get(name),
            kv_used=cache.get(name),
            kv_block_tokens=int(size) if size else None,
            kv_blocks=int(pages.get(name, 0.0)) or None,
            reused_blocks=tokens / size if tokens is not None and size else None,
        )
    return found


def counters(families: Families) -> Mapping[ModelVersion, Counters]:
    """Return each model's counter of finished requests."""
    done = by_name(_once_per_rank(families[SUCCESS]), total)
    return {ModelVersion(name, None): Counters(successes=count) for name, count in done.items()}


def _once_per_rank(samples: Iterable[SeriesSample]) -> list[SeriesSample]:
    """Keep one of the series that differ only in rank: the largest, or unknown if any is.

    Of series that differ in priority, the total is kept, or all where there is none.
    """
    found = list(samples)
    totals = {_but(each, _NOT_APART) for each in found if not each.labels.get(_PRIORITY)}
    kept: dict[tuple[tuple[str, str], ...], SeriesSample] = {}
    for sample in found:
        if sample.labels.get(_PRIORITY) and _but(sample, _NOT_APART) in totals:
            continue
        group = _but(sample, _RANKS)
        known = kept.get(group)
        if (
            known is None
            or sample.value is None
            or (known.value is not None and sample.value > known.value)
        ):
            kept[group] = sample
    return list(kept.values())


def _but(sample: SeriesSample, names: frozenset[str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(item for item in sample.labels.items() if item[0] not in names))
