"""Prompt blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.requests.blocks import prompt_blocks
from ext_proc.routing.values.request import Features, Form

BASE = Features(Form.GENERATE, model="m", prompt=bytes(range(64)))
STABLE = (-7379436069183963961, -7544060080626200717)


@pytest.mark.parametrize(("size", "count"), [(0, 0), (15, 0), (16, 1), (31, 1), (32, 2)])
def test_only_full_blocks_count(size, count):
    """The rest after the last full block has no hash."""
    assert len(prompt_blocks(BASE.changed(prompt=bytes(size)), 16)) == count


@pytest.mark.parametrize("limit", [2, 31, 32, 33, 64, 70])
def test_limit(limit):
    """At most ``limit`` hashes are returned, equal to those without it, of several rows too."""
    long = BASE.changed(prompt=bytes(range(210)))
    assert prompt_blocks(long, 3, limit=limit) == prompt_blocks(long, 3)[:limit]


def test_stable():
    """Hashes do not change between processes or releases: replicas' caches outlive pickers."""
    assert prompt_blocks(BASE, 32) == STABLE


@pytest.mark.parametrize(
    "changes", [{"model": "n"}, {"adapter": "a"}, {"salt": "a"}, {"model": None}]
)
def test_salt(changes):
    """Another model, adapter or cache salt has other blocks, from the root on."""
    other = prompt_blocks(BASE.changed(**changes), 16)
    assert not set(other) & set(prompt_blocks(BASE, 16))


def test_each_seed_gives_other_hashes():
    """Who does not know a fleet's seed cannot compute its hashes."""
    found = {prompt_blocks(BASE, 32, seed=seed) for seed in (0, 1, 2**64 - 1)}
    assert len(found) == 3
    assert prompt_blocks(BASE, 32, seed=0) == STABLE


@given(st.binary(max_size=200), st.binary(max_size=200), st.integers(1, 40))
def test_shared_blocks_are_exactly_the_shared_prefix(one, two, size):
    """Two prompts share their first hashes exactly as far as they share full blocks."""
    first = prompt_blocks(BASE.changed(prompt=one), size)
    second = prompt_blocks(BASE.changed(prompt=two), size)
    for index, (left, right) in enumerate(zip(first, second, strict=False)):
        end = (index + 1) * size
        assert (left == right) == (one[:end] == two[:end])
    assert all(-(2**63) <= value < 2**63 for value in first)
