"""The public traces as they are: counts and hit ratios that their publishers' data imply."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.engine import BlockCache
from bench.simulate.traces import read_trace
from bench.simulate.workload import BLOCK_TOKENS, ideal_hit_ratio

TRACES = Path(__file__).resolve().parents[2] / "bench" / "traces"


def test_the_conversation_trace() -> None:
    """12,031 requests, 37.4 % of whose input tokens one unbounded cache would serve."""
    workload = read_trace(TRACES / "conversation_trace.jsonl")
    assert len(workload.jobs) == 12_031
    assert workload.rate == pytest.approx(3.40, abs=0.01)
    assert ideal_hit_ratio(workload.jobs, workload.block_tokens) == pytest.approx(0.374, abs=0.001)


def test_one_lru_cache_on_the_conversation_trace() -> None:
    """One of 25,000 blocks serves the share that the trace's reference states."""
    cache = BlockCache(25_000)
    hit = total = 0
    for job in read_trace(TRACES / "conversation_trace.jsonl").jobs:
        lease = cache.lease(job.blocks, len(job.blocks), len(job.blocks))
        assert lease is not None
        cache.commit(lease, job.blocks)
        cache.release(lease)
        hit += lease.cached_blocks
        total += -(-job.input_tokens // BLOCK_TOKENS)
    assert hit / total == pytest.approx(0.310, abs=0.01)


def test_the_azure_trace() -> None:
    """19,366 requests at 5.5 per second, of 1,155 tokens on average, that share nothing."""
    workload = read_trace(TRACES / "AzureLLMInferenceTrace_conv.csv")
    assert len(workload.jobs) == 19_366
    assert workload.rate == pytest.approx(5.53, abs=0.01)
    mean = sum(job.input_tokens for job in workload.jobs) / len(workload.jobs)
    assert mean == pytest.approx(1155, abs=1)
    assert ideal_hit_ratio(workload.jobs, workload.block_tokens) == 0.0
