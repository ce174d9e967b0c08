"""The scale of text from what a replica's KV cache holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from ext_proc.routing.holdings import ANSWER_TOKENS, MAX_HELD, Holdings
from ext_proc.routing.scales import Scales
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.scale import BYTES_PER_TOKEN

R1: Final = "r1"
BLOCK: Final = 16
BLOCKS: Final = 100_000
LENGTHS: Final = {"p": 1_000}
SCALE: Final = 0.5
"""Bytes of a token of the text."""


def page(
    tokens: float, running: int, *, queued: float = 0.0, counted: float | None = None
) -> Reading:
    """Return a page of an engine whose running requests hold these tokens of prompts."""
    held = tokens + running * (ANSWER_TOKENS + BLOCK / 2)
    return Reading(
        1.0,
        queued=queued,
        running=float(running),
        kv_used=held / (BLOCKS * BLOCK),
        kv_blocks=BLOCKS,
        kv_block_tokens=BLOCK,
        prompt_tokens=counted,
        prompts=None if counted is None else float(running),
    )


def sent(*prompts: tuple[int, ...]) -> Holdings:
    """Return the holdings with prompts of full blocks."""
    holdings = Holdings()
    for ticket, blocks in enumerate(prompts):
        holdings.sent(ticket, "p", 1_000 * len(blocks), blocks)
    return holdings


def test_a_common_prefix_counts_once() -> None:
    """The engine holds it once, whatever the number of its requests."""
    found = sent((1, 2, 3), (1, 2, 4)).read(page(8_000.0, 2), LENGTHS)
    assert found is not None
    assert found == ("p", 4_000.0, 2.0, pytest.approx(8_000.0))


@pytest.mark.parametrize("running", [0, 1, 3])
def test_others_requests_tell_nothing(running: int) -> None:
    """Nor does a request that is not running yet."""
    assert sent((1, 2), (3, 4)).read(page(8_000.0, running), LENGTHS) is None


def test_short_prompts_tell_nothing() -> None:
    """Where answers are most of what is held, their length would decide."""
    assert sent((1,), (2,)).read(page(500.0, 2), LENGTHS) is None


def test_a_prompt_of_ids_tells_nothing() -> None:
    """Its size is not that of text."""
    holdings = sent((1, 2))
    holdings.sent(7, "p", 0, ())
    assert holdings.read(page(8_000.0, 2), LENGTHS) is None


def test_pages_weigh_the_prompts_that_are_new() -> None:
    """A page that shows mostly the requests of the one before is not used."""
    holdings = sent((1,), (2,), (3,))
    first = holdings.read(page(6_000.0, 3), LENGTHS)
    holdings.sent(3, "p", 1_000, (4,))
    again = holdings.read(page(8_000.0, 4), LENGTHS)
    holdings.sent(4, "p", 1_000, (5,))
    holdings.ended(0)
    then = holdings.read(page(8_000.0, 4), LENGTHS)
    assert [each and each.prompts for each in (first, again, then)] == [3.0, None, 2.0]


def test_memory_is_bounded() -> None:
    """The oldest prompts are dropped."""
    holdings = Holdings()
    for ticket in range(MAX_HELD + 5):
        holdings.sent(ticket, "p", 1_000, (ticket,))
    found = holdings.read(page(2_000.0 * MAX_HELD, MAX_HELD), LENGTHS)
    assert found is not None
    assert found.prompts == MAX_HELD


class Fleet:
    """One replica of a pool, whose page counts no tokens."""

    def __init__(self) -> None:
        self.scales = Scales(lambda _, __: None)
        endpoint = Endpoint(EndpointKey(R1, 1), "stable", "10.0.0.1:1", None)
        self.pool = Pool(
            "p", variants=(Variant("stable", 1),), endpoints=(endpoint,), block_chars=1_000
        )
        self.scales.set_pools({"p": self.pool})
        self.scales.observe(R1, (page(0.0, 0),))
        self.ticket = 0

    def serve(self, requests: int, *, queued: float = 0.0) -> None:
        """Serve requests one after another, each with a page while it runs."""
        for _ in range(requests):
            self.ticket += 1
            blocks = tuple(range(self.ticket * 8, self.ticket * 8 + 8))
            self.scales.sent(self.ticket, "p", None, R1, 8_000, None, blocks)
            self.scales.observe(R1, (page(8_000 / SCALE, 1, queued=queued),))
            self.scales.ended(self.ticket, R1)


def test_a_scale_is_learned_from_caches() -> None:
    """Within 5 % after some forty prompts, and its source is shown."""
    fleet = Fleet()
    fleet.serve(40)
    assert fleet.scales.of("p") == pytest.approx(SCALE, rel=0.1)
    assert fleet.scales.describe("p")["from"] == "cache"


def test_a_queue_tells_nothing() -> None:
    """Some of the prompts in flight hold nothing then."""
    fleet = Fleet()
    fleet.serve(40, queued=1.0)
    assert fleet.scales.of("p") == BYTES_PER_TOKEN


def test_counters_are_preferred() -> None:
    """Once a page has one, nothing is noted of the prompts in flight."""
    fleet = Fleet()
    fleet.scales.observe(R1, (page(0.0, 0, counted=0.0),))
    fleet.serve(1)
    assert not fleet.scales.held or fleet.scales.of("p") == BYTES_PER_TOKEN
    fleet.scales.observe(R1, (page(0.0, 0, counted=1.0),))
    assert not fleet.scales.held


def test_answers_are_preferred() -> None:
    """A pool whose answers tell tokens does not learn from caches any more."""
    fleet = Fleet()
    fleet.scales.set_pools({"p": replace(fleet.pool, usage=True)})
    for ticket in range(1_000, 1_040):
        fleet.scales.sent(ticket, "p", None, R1, 8_000, None)
        fleet.scales.told(ticket, 4_000)
        fleet.scales.ended(ticket, R1)
    fleet.serve(40)
    assert fleet.scales.of("p") == pytest.approx(2.0, rel=0.1)


def test_a_replica_that_is_gone_is_forgotten() -> None:
    """With the prompts in flight on it."""
    fleet = Fleet()
    fleet.serve(1)
    fleet.scales.set_pools({})
    assert not fleet.scales.held
    assert not fleet.scales.counting
