"""Common parts of the hashing policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.policies.hashing import key_of, ranking
from ext_proc.routing.values.request import Features, Form, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.candidates import SchedulingContext


def test_a_restart_keeps_a_replica_s_keys(context: Callable[..., SchedulingContext]) -> None:
    """The incarnation is not hashed; negative block hashes are valid keys."""
    made = context(3)
    key = key_of(Request("p", None, "http", Features(Form.GENERATE), (-5,)))
    assert key is not None
    before = ranking(key, made)
    for candidate in made.candidates:
        candidate.key = candidate.key._replace(incarnation=2)
    assert ranking(key, made) == before
