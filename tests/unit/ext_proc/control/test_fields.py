"""Fields of messages by tables."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ext_proc.control.fields import Bounds, FieldReader, PoolError
from tidegate_api.fleet.v1 import pool_pb2


@dataclass(frozen=True)
class Ramp:
    """Takes a ``SlowStart`` message."""

    window_s: float = 7.0
    aggression: float = 2.0
    min_weight: float = 0.5


READER = FieldReader(
    pool_pb2.SlowStart,
    Ramp,
    zero={"min_weight"},
    bounds={"aggression": Bounds(1.0, 3.0)},
    place="ramp.",
)


def test_names_may_differ_by_a_unit():
    """``window_seconds`` is ``window_s``."""
    sent = pool_pb2.SlowStart(window_seconds=9, aggression=3, min_weight=0.25)
    assert READER.read(sent, "here") == {"window_s": 9.0, "aggression": 3.0, "min_weight": 0.25}


def test_zero_is_the_default_unless_it_is_named_as_a_value():
    """A number that is left out takes the default of the picker's value."""
    read = READER.read(pool_pb2.SlowStart(), "here")
    assert read == {"window_s": 7.0, "aggression": 2.0, "min_weight": 0.0}


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (pool_pb2.SlowStart(aggression=4), r"^here: ramp.aggression is 4.0; it must be 1 to 3$"),
        (pool_pb2.SlowStart(window_seconds=float("inf")), "ramp.window is inf; it must be finite"),
        (pool_pb2.SlowStart(window_seconds=float("nan")), "ramp.window is nan"),
        (pool_pb2.SlowStart(min_weight=-1), "ramp.min_weight is -1.0"),
    ],
)
def test_a_number_out_of_its_bounds_is_refused(sent, says):
    """The text names the field and the bounds."""
    with pytest.raises(PoolError, match=says):
        READER.read(sent, "here")


def test_a_field_that_the_value_has_not_is_refused_at_once():
    """A field that was added to the schema alone is found when the module is imported."""
    with pytest.raises(TypeError, match=r"Outlier.consecutive_failures: .*Ramp has no field"):
        FieldReader(pool_pb2.Outlier, Ramp)
