"""Open sequences on draining replicas."""

from __future__ import annotations

from ext_proc.control.reporting.sequences import EVERY_S, OpenSequences
from ext_proc.routing.state.leases import Lease, LeaseKey, Leases
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool
from ext_proc.routing.values.request import SequenceKey

A, B = EndpointKey("a", 1), EndpointKey("b", 1)


def pools(*draining: str) -> dict[str, Pool]:
    """Return a pool of ``a`` and ``b``, of which some drain."""
    endpoints = tuple(
        Endpoint(key, "stable", f"{key.id}:1", None, draining=key.id in draining) for key in (A, B)
    )
    return {"llm": Pool("llm", endpoints=endpoints)}


def lease(leases: Leases, number: int, endpoint: EndpointKey, until: float) -> None:
    """Open a sequence."""
    leases.keep(
        LeaseKey("llm", SequenceKey("m", "", number)), Lease(endpoint, "stable", until), 0.0
    )


def test_only_sequences_on_draining_replicas_are_told() -> None:
    """Nobody waits for the others."""
    leases = Leases()
    lease(leases, 1, A, 9.0)
    lease(leases, 2, B, 9.0)
    assert OpenSequences(leases, lambda: pools("a"), lambda: 0.0)() == {"a": 1}


def test_a_drain_is_told_at_once() -> None:
    """A zero from before it would look as if the replica had no sequence."""
    leases, now, held = Leases(), [0.0], [pools()]
    lease(leases, 1, A, 99.0)
    counted = OpenSequences(leases, lambda: held[0], lambda: now[0])
    assert counted() == {}
    held[0] = pools("a")
    assert counted() == {"a": 1}


def test_they_are_counted_again_after_a_while() -> None:
    """One that is idle for long is over."""
    leases, now, held = Leases(), [0.0], pools("a")
    lease(leases, 1, A, 0.5)
    counted = OpenSequences(leases, lambda: held, lambda: now[0])
    assert counted() == {"a": 1}
    now[0] = EVERY_S - 0.1
    assert counted() == {"a": 1}
    now[0] = EVERY_S
    assert counted() == {}
