"""What operations on models come to."""

from __future__ import annotations

from typing import Any

from xds_server.applications.loading.operation import ModelTarget, Operation
from xds_server.applications.loading.overview import operations_now

MODEL = "m"


def operation(number: int, phase: Any, places: dict[str, Any], **more: Any) -> Operation:
    """Return an operation on these replicas, which began at as many seconds."""
    targets = [ModelTarget(name, place) for name, place in places.items()]
    given: dict[str, Any] = {"model": MODEL, "dry_run": False} | more
    return Operation(
        number,
        "load",
        "llm",
        version="",
        author="",
        reason="",
        parallel=1,
        force=False,
        began_unix_ms=number * 1000,
        targets=targets,
        phase=phase,
        **given,
    )


def left(*operations: Operation, gone: str = "") -> dict[str, int]:
    """Return the replicas that could not be brought back, by pool."""
    return dict(operations_now(operations, 0, lambda _, name: name != gone).left)


def test_open_operations_are_counted_with_their_age() -> None:
    """From their begin; and from their newest step if they run."""
    running = operation(2, "changing", {})
    running.tell(7_000, "r1: loaded")
    found = operations_now(
        [running, operation(1, "waiting", {}), operation(0, "done", {})], 10_000, lambda *_: True
    )
    assert (found.waiting, found.running, found.age_s, found.still_s) == (1, 1, 9.0, 3.0)


def test_without_an_open_operation_there_is_no_age() -> None:
    """0 would be one that has just begun; dry runs are none."""
    found = operations_now([operation(1, "checking", {}, dry_run=True)], 5_000, lambda *_: True)
    assert (found.waiting, found.running, found.age_s, found.still_s) == (0, 0, None, None)


def test_a_clock_that_was_set_back_makes_no_age_below_0() -> None:
    """Times are those of the wall clock."""
    found = operations_now([operation(9, "checking", {})], 1_000, lambda *_: True)
    assert (found.age_s, found.still_s) == (0.0, 0.0)


def test_replicas_that_could_not_be_brought_back_are_counted_once() -> None:
    """Those of several operations on one model are one replica."""
    one = operation(1, "failed", {"r1": "stuck", "r2": "undone"})
    assert left(one, operation(2, "failed", {"r1": "stuck"})) == {"llm": 1}


def test_a_later_operation_that_is_done_there_ends_it() -> None:
    """On this model and replica, whatever the order of the list; one that is undone does not."""
    failed = operation(3, "failed", {"r1": "stuck", "r2": "stuck"})
    assert left(operation(4, "done", {"r1": "kept"}), failed) == {"llm": 1}
    assert left(failed, operation(2, "done", {"r1": "kept"})) == {"llm": 2}
    assert left(failed, operation(4, "undone", {"r1": "undone"})) == {"llm": 2}
    assert left(failed, operation(4, "done", {"r1": "kept"}, model="other")) == {"llm": 2}
    assert left(failed, operation(4, "done", {"r1": "unknown"}, dry_run=True)) == {"llm": 2}


def test_a_replica_that_is_gone_is_not_counted() -> None:
    """Nobody can bring it back."""
    assert left(operation(1, "failed", {"r1": "stuck"}), gone="r1") == {}
