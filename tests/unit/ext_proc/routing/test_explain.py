"""The dump of the router's state."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ext_proc.routing.types import Decision, Reading

if TYPE_CHECKING:
    from .conftest import Build


def test_the_state_is_json_and_says_what_is_known(build: Build) -> None:
    """Load, cache, readings with their age, and unknown as null."""
    router = build.router(build.pool(1))
    router.observe("r0", [Reading(at=1.0, model="m", queued=3.0)])
    decision = router.decide(build.request((1, 2)), 2.0, 0.0)
    assert isinstance(decision, Decision)
    state = json.loads(json.dumps(router.state(2.5)))
    endpoint = state["pools"]["llm"]["endpoints"]["r0"]
    assert (endpoint["in_flight"], endpoint["work_tokens"], endpoint["index_blocks"]) == (1, 128, 2)
    assert endpoint["others_queued"] == 3.0
    assert endpoint["readings"][0]["age_s"] == 1.5
    assert endpoint["readings"][0]["kv_used"] is None
    assert state["counters"]["open_tickets"] == 1
    assert state["counters"]["settled"] == {}
