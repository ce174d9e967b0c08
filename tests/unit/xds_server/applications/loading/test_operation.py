"""What an operation remembers, and its stored form."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.applications.loading.operation import (
    MAX_STEP_CHARS,
    MAX_STEPS,
    MAX_STORED_WARMUP,
    ModelTarget,
    Operation,
    OperationError,
    dump,
    dump_warmup,
    load,
    load_warmup,
)


def operation() -> Operation:
    """Return an operation."""
    return Operation(1, "load", "llm", "m", "2", "ann", "", 2, False, False, 5, [ModelTarget("r1")])


def test_the_stored_form_is_the_whole_operation() -> None:
    """A restart goes on with it."""
    made = operation()
    made.tell(6, "checking")
    assert load(dump(made)) == made


def test_steps_are_bounded() -> None:
    """The first ones say what was wanted, the newest what happened; the number left out is told."""
    made = operation()
    for turn in range(MAX_STEPS + 5):
        made.tell(turn, f"{turn}" + "x" * MAX_STEP_CHARS)
    assert (len(made.steps), made.left_out) == (MAX_STEPS, 5)
    assert (made.steps[0].at_unix_ms, made.steps[-1].at_unix_ms) == (0, MAX_STEPS + 4)
    assert {len(each.text) for each in made.steps} == {MAX_STEP_CHARS}


@pytest.mark.parametrize("change", [{"phase": "x"}, {"kind": 1}, {"number": None}, {"more": 1}])
def test_another_form_is_not_read(change: dict[str, object]) -> None:
    """The store may be of a newer version."""
    with pytest.raises(OperationError):
        load(json.dumps(json.loads(dump(operation())) | change))


@given(st.text() | st.recursive(st.none() | st.integers(), st.lists).map(json.dumps))
def test_any_text_is_an_operation_or_an_error(text: str) -> None:
    """A damaged store must not stop the server."""
    with pytest.raises(OperationError):
        load(text)


def test_the_stored_form_of_warm_up_requests_is_whole() -> None:
    """Any bytes, and only for the operation that they are of."""
    text = dump_warmup(7, [b"", b"\xff{}"])
    assert load_warmup(text, 7) == (b"", b"\xff{}")
    assert load_warmup(text, 8) is None


def test_warm_up_requests_that_are_too_large_are_not_stored() -> None:
    """The bound is that of all together."""
    half = b"x" * (MAX_STORED_WARMUP // 2)
    assert dump_warmup(1, [half, half])
    assert dump_warmup(1, [half, half, b"x"]) is None


@given(st.text() | st.recursive(st.none() | st.integers(), st.lists).map(json.dumps))
def test_any_text_is_warm_up_requests_or_none(text: str) -> None:
    """A damaged store must not stop the server."""
    assert load_warmup(text, 1) is None
    assert load_warmup(None, 1) is None
