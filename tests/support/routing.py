"""Shorthand functions for tests of a router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.values.refusal import Refusal
from ext_proc.routing.values.ticket import Outcome

if TYPE_CHECKING:
    from ext_proc.routing.router import Router
    from ext_proc.routing.values.request import Request

PROMPT = tuple(range(1, 41))
"""Blocks of a prompt."""


def decide(router: Router, request: Request, now: float = 0.0, unix_now: float = 0.0) -> Decision:
    """Return the router's decision; a refusal fails the test."""
    decision = router.decide(request, now, unix_now)
    assert isinstance(decision, Decision), decision
    return decision


def refuse(router: Router, request: Request, now: float = 0.0) -> Refusal:
    """Return the router's refusal; a decision fails the test."""
    refusal = router.decide(request, now, 0.0)
    assert isinstance(refusal, Refusal), refusal
    return refusal


def end(router: Router, decision: Decision) -> None:
    """Settle a request successfully."""
    assert decision.ticket is not None
    assert router.settle(decision.ticket, Outcome.DONE, 0.0)
