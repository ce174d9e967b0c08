"""The replay that compares reported caches with predicted ones."""

from __future__ import annotations

from bench.compare.kv_belief import BLOCK, BLOCKS, Cache, Replay, names


def test_a_cache_holds_a_prompt_until_others_take_its_blocks() -> None:
    """The last blocks of the oldest prompt go first; the last token is always computed."""
    cache, first, second = Cache(), list(range(10 * BLOCK)), list(range(1, 1 + 115 * BLOCK))
    assert cache.run(names(first), len(first)) == 0
    assert cache.stored == list(names(first))
    assert cache.run(names(first), len(first)) == 9
    cache.run(names(second), len(second))
    free = BLOCKS - 1 - 115
    assert len(cache.removed) == 10 + 1 - free, "nine blocks, and two copies of the tenth"
    assert cache.run(names(first), len(first)) == free


def test_a_block_that_is_not_full_is_taken_first() -> None:
    """It can not be found again, so it costs no other prompt a block."""
    cache, removed = Cache(), []
    for number in range(BLOCKS - 2):
        prompt = [number] * (BLOCK + 1)
        assert cache.run(names(prompt), len(prompt)) == 0
        removed += cache.removed
    assert removed == []


def test_predictions_of_reported_caches_are_true() -> None:
    """Other clients evict what they like, and each prediction is the cache's own count."""
    assert Replay(0, exact=True, others=True).run().equal == 1.0


def test_reports_cost_neither_kind_of_prompts_hits() -> None:
    """Kinds that come by turns share the caches; 12 seeds, which give ids +0.006, chats +0.007."""
    lost = [0.0, 0.0]
    for seed in range(12):
        guessed, known = (Replay(seed, exact=exact, others=False).run() for exact in (False, True))
        for at in range(len(lost)):
            lost[at] += guessed[at] - known[at]
    assert max(lost) <= 0.0


def test_a_seed_repeats() -> None:
    """Prompts and random picks are the same."""
    assert Replay(1, exact=False, others=False).run() == Replay(1, exact=False, others=False).run()
