"""Exchanges of a picker whose CPU does not suffice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ext_proc.exchange import Body
from ext_proc.routing.relief import CHEAP, PASS, USUAL
from ext_proc.routing.values.pool import ModelNeeds, Variant
from support.exchanges import generic, grpc, head, run, unnamed
from support.streams import llm, replicas, router

CHAT = "/v1/chat/completions"
TEXT = b"tell me about tides " * 60
BODY = Body(
    b'{"model": "toy-llm", "messages": [{"role": "user", "content": "' + TEXT + b'"}]}',
    end_of_stream=True,
)
ONE = {
    "models": frozenset({"toy-llm"}),
    "variants": (Variant("stable", 1),),
    "unsound_requests": "pass",
    "refuse_deadly": False,
}


def relieved(level, **more):
    """Return a router at a level."""
    made = router(replace(llm(endpoints=replicas(2)), **(ONE | more)))
    made.relief.level = level
    return made


def test_a_cheap_decision_reads_no_prompt_and_is_by_load():
    """The replica with fewer in flight gets it, also where the other one has the prompt."""
    made = relieved(USUAL)
    first = run(made, head(path=CHAT), BODY)[1].pick.destination
    made.relief.level = CHEAP
    blocks = made.index.blocks
    assert blocks
    assert run(made, head(path=CHAT), BODY)[1].pick.destination != first
    assert made.index.blocks == blocks


def test_what_any_replica_may_serve_goes_on_without_a_pick():
    """Before its body is asked for."""
    exchange, reply = run(relieved(PASS), head(path=CHAT))
    assert exchange.passed == "overloaded"
    assert reply.override is None


@pytest.mark.parametrize(
    "more",
    [
        {"needs_pick": True},
        {"models": frozenset({"a", "b"})},
        {"model_needs": (ModelNeeds("m"),)},
        {"variants": (Variant("stable", 1), Variant("canary", 1))},
    ],
)
def test_where_replicas_differ_a_pick_is_needed(more):
    """And where the pool does not let the proxy balance."""
    assert run(relieved(PASS, **more), head(path=CHAT))[0].passed is None


@pytest.mark.parametrize(
    "guard", [{"unsound_requests": "refuse"}, {"refuse_deadly": True}, {"max_tokens": 100}]
)
def test_a_flood_switches_off_no_guard(guard):
    """Bodies that are judged are judged under any load."""
    assert run(relieved(PASS, **guard), head(path=CHAT))[0].passed is None


@pytest.mark.parametrize("event", [head(), grpc(), generic(CHAT), unnamed(CHAT)])
def test_all_else_is_decided(event):
    """Triton's requests may belong to sequences, and other pools may be meant."""
    assert run(relieved(PASS), event)[0].passed is None
