"""The work of validation grows with the size of a fleet, not with its square.

Counted in executed bytecodes, which no other load of the machine changes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from pydantic import ValidationError

from xds_server.fleet.load import FleetError, load_text
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.rules.fleet import problems

SMALL, LARGE = 60, 240
TOLERANCE = 1.3
"""Allowed growth above proportional; a square would be ``LARGE / SMALL``."""


def executed(work: Callable[[], object]) -> int:
    """Return the number of bytecodes that ``work`` executes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def address(number: int) -> str:
    """Return one of 65,536 addresses."""
    return f"10.0.{number >> 8}.{number & 255}:8000"


def one(**fields: Any) -> dict[str, Any]:
    """Return a fleet of one pool."""
    pool = {"name": "p", "match": {"models": ["m"]}, "endpoints": [{"http": address(0)}], **fields}
    return {"pools": [pool]}


def many(number: int, **fields: Any) -> dict[str, Any]:
    """Return a fleet of many pools with a replica each."""
    pools = [
        {
            "name": f"p{i}",
            "match": {"models": [f"m{i}"]},
            "endpoints": [{"http": address(i)}],
            **{name: make(i) for name, make in fields.items()},
        }
        for i in range(number)
    ]
    return {"pools": pools}


def endpoints(number: int, **fields: Any) -> list[dict[str, Any]]:
    """Return replicas."""
    return [{"http": address(i), **fields} for i in range(number)]


def events(number: int) -> dict[str, Any]:
    """Return the events of a replica."""
    return {"kv_events": {"address": f"tcp://{address(number)}", "model": "m1"}}


SHAPES: dict[str, Callable[[int], dict[str, Any]]] = {
    "pins": lambda n: one(
        variants=[
            {"name": f"v{i}", "weight": int(not i), "match": {"headers": {"a": "1", "b": str(i)}}}
            for i in range(n)
        ]
    ),
    "variants with a replica each": lambda n: one(
        variants=[{"name": f"v{i}"} for i in range(n)],
        endpoints=[{"http": address(i), "variant": f"v{i}"} for i in range(n)],
    ),
    "variants without replicas": lambda n: one(variants=[{"name": f"v{i}"} for i in range(n)]),
    "replicas": lambda n: one(endpoints=endpoints(n)),
    "replicas of no variant": lambda n: one(
        variants=[{"name": f"v{i}", "weight": int(not i)} for i in range(n)],
        endpoints=[{"http": address(n)}, *endpoints(n, variant="none")],
    ),
    "events": lambda n: one(
        match={"models": [f"m{i}" for i in range(n)]},
        endpoints=[{"http": address(i), "telemetry": events(i)} for i in range(n)],
    ),
    "pools": many,
    "pools that share a path": lambda n: many(
        n, match=lambda i: {"models": [f"m{i}"], "paths": ["/shared", f"/{i}"]}
    ),
    "pools with a shadow": lambda n: many(n, shadow=lambda _: {"pool": "p0", "variant": "none"}),
    "shadows of no pool": lambda n: many(n, shadow=lambda _: {"pool": "none", "variant": "none"}),
    "models": lambda n: one(match={"models": [f"m{i}" for i in range(n)]}),
    "unknown fields": lambda n: one(**{f"field{i}": i for i in range(n)}),
    "bad addresses": lambda n: one(endpoints=[{"http": f"host{i}"} for i in range(n)]),
}


def refused(text: str) -> None:
    """Load a text that is refused."""
    with pytest.raises(FleetError):
        load_text(text)


@pytest.mark.parametrize("shape", SHAPES)
def test_twice_the_fleet_is_twice_the_work(shape: str) -> None:
    """A fleet of 234 KB would otherwise occupy the server for a minute."""

    def load(number: int) -> Callable[[], object]:
        value = SHAPES[shape](number)
        try:
            fleet = Fleet.model_validate(value)
        except ValidationError:
            return lambda: refused(json.dumps(value))
        return lambda: problems(fleet)

    load(2)()  # caches of the first use
    small, large = executed(load(SMALL)), executed(load(LARGE))
    assert large <= small * (LARGE / SMALL) * TOLERANCE
