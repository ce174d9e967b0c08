"""Telemetry that the fleet file declares, and its way to the pickers."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from ext_proc.pools import MAX_CUSTOM as MOST_TAKEN
from ext_proc.pools import PoolError, pool_of
from ext_proc.routing.types import CustomMetric
from ext_proc.telemetry.dialects.custom import DECLARABLE
from protos.tidegate.fleet.v1 import pool_pb2
from xds_server.fleet.model import Fleet
from xds_server.fleet.rules import problems
from xds_server.fleet.telemetry import MAX_CUSTOM, PoolTelemetry


def custom(**changes):
    return {"reading": "queued", "metric": "my_queue", **changes}


def fleet(**telemetry):
    pools = [
        {
            "name": name,
            "match": {"models": [name]},
            "endpoints": [{"id": "r1", "http": "127.0.0.1:1", "telemetry": each}],
            "default": name == "a",
        }
        for name, each in telemetry.items()
    ]
    return Fleet.model_validate({"pools": pools})


@pytest.mark.parametrize(
    "wrong", [{"reading": "at"}, {"metric": "my queue"}, {"scale": 0}, {"labels": {"a": 1}}]
)
def test_a_declaration_that_makes_no_sense(wrong):
    """A field that no reading has, a bad name or a factor of 0 is refused."""
    with pytest.raises(ValidationError):
        PoolTelemetry.model_validate({"custom": [custom(**wrong)]})


def test_bounds():
    """The file and the picker have the same bound, and the same names."""
    assert len(PoolTelemetry.model_validate({"custom": [custom()] * MAX_CUSTOM}).custom) == 32
    with pytest.raises(ValidationError):
        PoolTelemetry.model_validate({"custom": [custom()] * (MAX_CUSTOM + 1)})
    assert MOST_TAKEN == MAX_CUSTOM
    for name in DECLARABLE:
        PoolTelemetry.model_validate({"custom": [custom(reading=name)]})


def test_one_replica_has_one_telemetry():
    """A replica in two pools tells its numbers in one way."""
    page = {"gpu_metrics": "http://127.0.0.1:9400/metrics"}
    assert not problems(fleet(a=page, b=page))
    assert [problem.location[-1] for problem in problems(fleet(a=page, b={}))] == ["telemetry"]


def test_pickers_take_it():
    """Declared series and GPUs arrive as declared; a factor left out is 1."""
    message = pool_pb2.Pool(
        name="p",
        variants=[pool_pb2.Variant(name="stable", weight=1)],
        endpoints=[
            pool_pb2.Endpoint(
                id="r1",
                variant="stable",
                http_address="127.0.0.1:1",
                gpu_metrics_url="http://127.0.0.1:9400/metrics",
                gpus=["0", "1"],
            )
        ],
        custom_metrics=[pool_pb2.CustomMetric(reading="queued", metric="q", labels={"b": "1"})],
    )
    pool = pool_of(message)
    assert pool.custom_metrics == (CustomMetric("queued", "q", (("b", "1"),)),)
    assert pool.endpoints[0].gpu_metrics_url == "http://127.0.0.1:9400/metrics"
    assert pool.endpoints[0].gpus == {"0", "1"}


def test_pickers_refuse_what_they_do_not_know():
    """A field of a later version, and more series than the bound, are refused by name."""
    message = pool_pb2.Pool(name="p", variants=[pool_pb2.Variant(name="stable", weight=1)])
    message.custom_metrics.add(reading="mood", metric="q")
    with pytest.raises(PoolError, match="'mood'"):
        pool_of(message)
    del message.custom_metrics[:]
    for _ in range(MOST_TAKEN + 1):
        message.custom_metrics.add(reading="queued", metric="q")
    with pytest.raises(PoolError, match="33 declared series"):
        pool_of(message)
