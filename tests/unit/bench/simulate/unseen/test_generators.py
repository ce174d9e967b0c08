"""Workloads that judge: reproducible, whole, and unchanged since they were committed."""

from __future__ import annotations

from hashlib import sha256

import pytest

from bench.simulate.unseen.generators import UNSEEN
from bench.simulate.workload import BLOCK_TOKENS, ideal_hit_ratio

DIGESTS = {
    "agents": "bdaee3dfb78afc37",
    "documents": "bd058b3ef2950802",
    "retrieval": "9e02e1ec09acd748",
}


@pytest.mark.parametrize("name", UNSEEN)
def test_jobs_are_numbered_in_order_and_whole(name: str) -> None:
    """Indices and times rise; a prompt has exactly its full blocks; prompts share some."""
    jobs = UNSEEN[name](800, 4.0).jobs
    assert [job.index for job in jobs] == list(range(800))
    assert [job.at for job in jobs] == sorted(job.at for job in jobs)
    assert all(len(job.blocks) == job.input_tokens // BLOCK_TOKENS for job in jobs)
    assert all(job.output_tokens >= 1 for job in jobs)
    assert ideal_hit_ratio(jobs, BLOCK_TOKENS) > 0.4


@pytest.mark.parametrize("name", UNSEEN)
def test_a_judge_is_not_changed(name: str) -> None:
    """A generator that changes after its first run would be a tuned one."""
    jobs = UNSEEN[name](200, 4.0).jobs
    text = repr([(round(job.at, 6), job.input_tokens, job.output_tokens) for job in jobs])
    assert sha256(text.encode()).hexdigest()[:16] == DIGESTS[name]
