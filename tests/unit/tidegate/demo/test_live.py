"""The live table."""

from __future__ import annotations

import io

from rich.console import Console

from tidegate.demo.counters import ReplicaCounters, Seen
from tidegate.demo.live import replica_table
from tidegate.stack.tritons.replica import TritonReplica

R1 = TritonReplica(name="r1", http="127.0.0.1:1", grpc="127.0.0.1:2", metrics="127.0.0.1:3")
R2 = TritonReplica(name="r2", http="127.0.0.1:4", grpc="127.0.0.1:5", metrics="127.0.0.1:6")
START = {"r1": ReplicaCounters({("vision", "1"): 1}), "r2": ReplicaCounters()}


def lines(seen: dict[str, Seen] | None, now: dict[str, ReplicaCounters | None]) -> list[list[str]]:
    """Return the table's rows as words."""
    stream = io.StringIO()
    Console(file=stream, width=100).print(replica_table((R1, R2), seen, START, now))
    return [line.split() for line in stream.getvalue().splitlines()[1:]]


def test_shares_are_of_what_was_served_since_the_start() -> None:
    """Served counts start at 0 with the table, and the shares add up to 100 %."""
    seen = {"r1": Seen(2, 1.0, 0.25, False), "r2": Seen(0, None, None, True)}
    now = {"r1": ReplicaCounters({("vision", "1"): 4}), "r2": ReplicaCounters({("vision", "1"): 1})}
    first, second = lines(seen, now)
    assert first == ["r1", "stable", "in", "use", "2", "1", "25.0%", "3", "75.0%"]
    assert second == ["r2", "stable", "draining", "0", "-", "-", "1", "25.0%"]


def test_missing_data_is_unknown() -> None:
    """A dead replica is down; without a picker, numbers are unknown, not 0."""
    first, second = lines(None, {"r1": None, "r2": ReplicaCounters()})
    assert first == ["r1", "stable", "down", "-", "-", "-", "-", "-"]
    assert second == ["r2", "stable", "picker", "unknown", "-", "-", "-", "0", "-"]
