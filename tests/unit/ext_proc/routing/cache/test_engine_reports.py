"""The exact index: reports, copies, gaps, speculation, mismatches, purge, memory."""

from __future__ import annotations

import random
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from ext_proc.routing.cache.index_events import Reporting, Stored
from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.cache.prefix_table import LONG
from ext_proc.routing.cache.prefix_uses import DOUBTS, MAX_EXPECTED, SPECULATIVE_S
from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.values.pool import EndpointKey
from support.prefix_caches import A, B, reporting

if TYPE_CHECKING:
    from .conftest import Build


def test_what_an_engine_stores_is_held_until_it_removes_it() -> None:
    """Stored blocks match until they are removed, and do not expire."""
    index = reporting(ttl_s=10.0)
    index.reports.store(A, 0, (71, 72, 73), (1, 2, 3))
    index.expire(1e6)
    assert index.match_all((1, 2, 3, 4)) == {A: 3}
    assert index.reports.block(A, 0, 72) == 2
    index.reports.remove(A, 0, (73, 999))
    assert index.match_all((1, 2, 3)) == {A: 2}
    assert index.reports.block(A, 0, 73) is None


def test_a_removed_parent_ends_the_match_however_long_the_prompt() -> None:
    """Matches stay contiguous if an engine removes a block before its children."""
    index = reporting()
    blocks = tuple(range(1, 3 * LONG))
    index.reports.store(A, 0, blocks, blocks)
    index.insert(B, blocks[: LONG + 5], 0.0)
    index.reports.remove(A, 0, (LONG,))
    assert index.match_all(blocks) == {A: LONG - 1, B: LONG + 5}
    index.reports.remove(A, 0, (1,))
    assert index.match_all(blocks) == {B: LONG + 5}


def test_reports_of_reused_blocks_add_no_copies() -> None:
    """Clients can make vLLM report what a prompt reuses; one removal ends such blocks."""
    index = reporting()
    index.reports.store(A, 0, (7, 8), (1, 2))
    for _ in range(5):
        index.reports.store(A, 0, (7, 8), (1, 2))
    index.reports.remove(A, 0, (8, 7))
    assert (index.match_all((1,)), index.held(A), index.blocks) == ({}, 0, 0)


def test_a_prompt_that_is_computed_from_its_root_is_a_copy() -> None:
    """With ``prompt_logprobs`` an engine computes what it holds; in parts, if it is long."""
    index = reporting()
    index.reports.store(A, 0, (7, 8, 9), (1, 2, 3))
    index.provisional.propose(A, (1, 2, 3), 0.0, recomputed=True)
    index.reports.store(A, 0, (7, 8), (1, 2))
    index.reports.store(A, 0, (9,), (3,), 2)
    index.reports.store(A, 0, (7, 8), (1, 2))  # reported reuse
    index.reports.remove(A, 0, (9, 8, 7))
    assert index.match_all((1, 2, 3)) == {A: 3}
    index.reports.remove(A, 0, (9, 8, 7))
    assert (index.match_all((1,)), index.held(A)) == ({}, 0)


def test_a_failed_request_makes_no_copy() -> None:
    """An engine that refuses a prompt computes nothing; later reports are of reuse."""
    index = reporting()
    index.reports.store(A, 0, (7, 8), (1, 2))
    trial = index.provisional.propose(A, (1, 2), 0.0, recomputed=True)
    index.provisional.failed(trial)
    index.reports.store(A, 0, (7, 8), (1, 2))
    index.reports.remove(A, 0, (7, 8))
    assert index.match_all((1,)) == {}


def test_expected_prompts_are_bounded() -> None:
    """Requests of which an engine never reports anything leave no more than a few prompts."""
    index = reporting()
    index.reports.store(A, 0, (7,), (1,))
    for number in range(2 * MAX_EXPECTED):
        index.provisional.propose(A, (1, 10 + number), 0.0, recomputed=True)
    for _ in range(2 * MAX_EXPECTED):
        index.reports.store(A, 0, (7,), (1,))
    for _ in range(MAX_EXPECTED):
        index.reports.remove(A, 0, (7,))
        assert A in index.match_all((1,))
    index.reports.remove(A, 0, (7,))
    assert index.reports.block(A, 0, 7) is None


def test_the_rest_of_a_reported_prompt_counts_for_two_seconds() -> None:
    """Where a report has begun to confirm a prompt, the rest is held speculatively."""
    index = reporting(ttl_s=1e6)
    index.insert(A, (1, 2, 3), 0.0)
    index.reports.store(A, 0, (71, 72), (1, 2))
    assert index.match_all((1, 2, 3)) == {A: 3}
    index.expire(SPECULATIVE_S + 1.1)
    assert index.match_all((1, 2, 3)) == {A: 2}


def test_a_prompt_of_which_nothing_is_reported_keeps_the_usual_time() -> None:
    """Chats never match the reports of their engine; beside prompts that do they keep affinity."""
    index = reporting(ttl_s=100.0)
    index.reports.store(A, 0, (71, 72), (1, 2))
    for now in (0.0, 30.0):
        index.insert(A, (1, 2), now)
        index.insert(A, (11, 12), now)
        index.expire(now + 29.0)
        assert index.match_all((11, 12)) == {A: 2}
    index.expire(131.0)
    assert index.match_all((11, 12)) == {}
    assert index.match_all((1, 2)) == {A: 2}


def test_a_removal_ends_a_prompt_whose_request_ends_later() -> None:
    """The verdict on a request does not bring back what its engine has removed meanwhile."""
    for complete in (True, False):
        index = reporting(ttl_s=100.0)
        index.reports.set_reporting(A, complete=complete)
        early = index.provisional.propose(A, (1, 2, 3), 0.0)
        index.reports.store(A, 0, (71, 72, 73), (1, 2, 3))
        known = index.provisional.propose(A, (1, 2, 3), 0.0)
        index.reports.remove(A, 0, (73, 72))
        index.provisional.confirm(early, 1.0)
        index.provisional.confirm(known, 1.0)
        assert index.match_all((1, 2, 3)) == {A: 1}
        assert index.held(A) == 1


def test_reports_that_never_match_are_counted_until_they_do() -> None:
    """Mismatched hashes are shown, leave the usual time, and recover on a match."""
    index = reporting(ttl_s=1000.0)
    for number in range(DOUBTS):
        assert index.is_exact(A)
        index.insert(A, (number + 10,), 0.0)
        index.reports.store(A, 0, (number,), (-number - 1,))
    assert index.is_exact(A) is False
    index.expire(500.0)
    assert index.match_all((10,)) == {A: 1}
    index.reports.store(A, 0, (12345,), (10,))
    assert index.is_exact(A)


def test_reports_of_an_endpoint_that_does_not_report_are_ignored() -> None:
    """Stores, removals and clears are ignored before ``set_reporting``."""
    index = PrefixIndex()
    index.reports.store(B, 0, (7,), (1,))
    index.reports.remove(B, 0, (7,))
    index.reports.clear(B, 0)
    assert (index.blocks, index.reports.block(B, 0, 7), index.is_exact(B)) == (0, None, None)


def test_an_endpoint_that_stops_reporting_is_purged() -> None:
    """Its reports are dropped, and later dispatches count for the usual time."""
    index = reporting(ttl_s=100.0)
    index.reports.store(A, 0, (7,), (1,))
    index.reports.set_reporting(A, complete=None)
    assert index.match_all((1,)) == {}
    index.insert(A, (1,), 0.0)
    index.expire(50.0)
    assert index.match_all((1,)) == {A: 1}
    assert index.is_exact(A) is None


def test_an_endpoint_that_is_gone_leaves_nothing() -> None:
    """Forgetting drops its reports and its state as a reporting endpoint."""
    index = reporting()
    index.reports.store(A, 0, (7,), (1,))
    index.forget(A)
    index.expire(0.0)
    assert (index.blocks, A in index.table.reporting) == (0, False)


def test_a_purge_takes_effect_at_once_and_the_endpoint_still_reports() -> None:
    """After a purge new stores count, and the memory is freed later."""
    index = reporting()
    index.reports.store(A, 0, tuple(range(500)), tuple(range(1, 501)))
    index.purge(A)
    assert index.match_all((1,)) == {}
    index.reports.store(A, 0, (7,), (1,))
    assert index.match_all((1, 2)) == {A: 1}
    for number in range(10):
        index.expire(float(number))
    assert index.blocks == index.held(A) == 1


def test_the_bound_holds_and_is_counted() -> None:
    """Reports beyond the bound are ignored; dispatched blocks are evicted for reported ones."""
    index = reporting(max_blocks=3)
    index.insert(A, (1, 2, 3), 0.0)
    index.reports.store(A, 0, (74, 75, 76, 77), (4, 5, 6, 7))
    assert index.held(A) == 3
    assert index.reports.overflowed == 1
    assert index.match_all((4,)) == {A: 1}
    assert index.match_all((1,)) == {}
    index.reports.remove(A, 0, (77, 74))
    assert index.held(A) == 2


def test_a_lowered_ttl_reaches_an_endpoint_with_gaps() -> None:
    """The pool's TTL applies as soon as the endpoint's reports have gaps."""
    index = reporting(ttl_s=1000.0)
    index.insert(A, (1,), 0.0)
    index.limit(A, 100, 5.0)
    index.reports.set_reporting(A, complete=False)
    index.expire(4.0)
    assert index.match_all((1,)) == {A: 1}
    index.expire(6.1)
    assert index.match_all((1,)) == {}


def test_a_prefix_reported_in_many_continuations_is_shared() -> None:
    """Forks are counted in reports too, with the parent in an earlier event."""
    index = reporting()
    index.reports.store(A, 0, (1,), (1,))
    for number in range(10, 16):
        index.reports.store(A, 0, (number,), (number,), 1)
    assert index.table.shared_depth((1, 10), 2, 2) == 1


@pytest.mark.parametrize("length", [8, 256])
def test_a_reported_block_takes_less_than_200_bytes(length: int) -> None:
    """Names and blocks of one endpoint take less than 200 bytes each, at 50,000 of them."""
    rng = random.Random(1)
    total = 50_000
    index = reporting(max_blocks=total)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(total // length):
        names = tuple([rng.getrandbits(60) for _ in range(length)])
        index.reports.store(A, 0, names, tuple([rng.getrandbits(63) for _ in range(length)]))
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert index.held(A) >= total - length
    assert used / index.held(A) < 200


# --- In the router ------------------------------------------------------------------------------


def test_cache_events_reach_index_and_followers(build: Build) -> None:
    """Cache events change the index and are passed on; unknown endpoints are ignored."""
    events: list[object] = []
    router, key = build.router(build.pool(2), on_event=events.append), EndpointKey("r1", 1)
    reports = [Reporting(key, complete=True), Stored(key, 0, (7, 8), (1, 2))]
    for event in reports:
        router.registry.cached(event)
    router.registry.cached(Reporting(EndpointKey("gone", 1), complete=True))
    assert events == reports
    decision = router.decide(build.request((1, 2, 3)), 0.0, 0.0)
    assert isinstance(decision, Decision)
    assert decision.matched_blocks == 2


def test_a_restart_leaves_an_exact_cache_to_its_engine(build: Build) -> None:
    """A restart does not purge it: the engine's own events may already describe the new cache."""
    router, key = build.router(build.pool(2)), EndpointKey("r1", 1)
    router.registry.cached(Reporting(key, complete=True))
    router.registry.cached(Stored(key, 0, (7,), (1,)))
    router.registry.restarted("r1", 0.0)
    assert router.index.match_all((1,)) == {key: 1}
