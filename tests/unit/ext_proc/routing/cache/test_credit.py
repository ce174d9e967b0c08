"""Prompts are credited to the replica that served them."""

from __future__ import annotations

from ext_proc.routing.cache import credit as module
from ext_proc.routing.cache.credit import Credit
from ext_proc.routing.values.ticket import Outcome


def picked(build, router):
    """Return a prompted request's ticket, and another replica's key and address."""
    ticket = router.decide(build.request(blocks=(1, 2, 3)), 0.0, 0.0).ticket
    other = next(e for e in router.pools["llm"].endpoints if e.key != ticket.endpoint)
    return ticket, other


def test_a_moved_charge_takes_its_prompt_along(build):
    """The index has the blocks of a running request at the replica that serves it."""
    router = build.router(build.pool(2))
    ticket, other = picked(build, router)
    router.served(ticket, other.http, 1.0)
    assert router.index.matched((1, 2, 3), other.key) == 3


def test_a_settled_request_is_credited_too(build):
    """A prompt is credited once, also after its request was settled."""
    router = build.router(build.pool(2))
    ticket, other = picked(build, router)
    router.settle(ticket, Outcome.DONE, 1.0)
    router.credit(ticket.id, other.key, 1.2)
    assert router.index.matched((1, 2, 3), other.key) == 3
    router.registry.restarted(other.key.id, 2.0)
    router.credit(ticket.id, other.key, 2.2)
    assert router.index.matched((1, 2, 3), other.key) == 0


def test_memory_is_bounded_by_blocks(monkeypatch):
    """Beyond the bound the oldest prompts are dropped first."""
    monkeypatch.setattr(module, "MAX_BLOCKS", 10)
    credit = Credit()
    for ticket in range(5):
        credit.note(ticket, (ticket,) * 4)
    assert [credit.take(ticket) for ticket in range(5)] == [(), (), (), (3,) * 4, (4,) * 4]
    assert credit._left == 10
