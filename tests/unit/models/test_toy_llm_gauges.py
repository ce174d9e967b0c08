"""The toy model's series, with a fake of Triton's metric families."""

from types import SimpleNamespace

import pytest
from toyllm.engine import EngineLoad, Token
from toyllm.gauges import Gauges

LOAD = EngineLoad(
    active=5,
    max_requests=16,
    scheduled=3,
    context=1,
    waiting=2,
    max_blocks=64,
    free_blocks=48,
    used_blocks=16,
    reused_blocks=7,
    iterations=9,
)


class FamilyOfTriton:
    """Stores each series in a shared table."""

    GAUGE = "gauge"
    COUNTER = "counter"
    table: dict

    def __init__(self, name, description, kind) -> None:
        assert description
        self.name, self.kind = name, kind

    def Metric(self, labels):  # noqa: N802 - Triton's name
        """Make one series at 0."""
        key = (self.name, *sorted(labels.items()))
        assert key not in self.table
        self.table[key] = 0.0

        def put(value) -> None:
            assert self.kind == "gauge"
            self.table[key] = value

        def add(value) -> None:
            assert self.kind == "counter"
            self.table[key] += value

        return SimpleNamespace(set=put, increment=add)


@pytest.fixture
def table(monkeypatch):
    """Return the table of all series."""
    series: dict = {}
    monkeypatch.setattr(FamilyOfTriton, "table", series, raising=False)
    return series


@pytest.fixture
def gauges(table):  # noqa: ARG001 - makes the table first
    """Return the gauges of one model version."""
    return Gauges(SimpleNamespace(MetricFamily=FamilyOfTriton), "toy-llm", "2")


def value(table, name, **labels):
    """Return a series of the model."""
    return table[(name, *sorted({"model": "toy-llm", "version": "2", **labels}.items()))]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("max", 64),
        ("free", 48),
        ("used", 16),
        ("tokens_per", 16),
        ("reused", 7),
        ("fraction", 0.25),
    ],
)
def test_block_gauges_carry_their_label(gauges, table, kind, expected):
    """Each kind of block count lands in its own series; fraction is used over max."""
    gauges.set(LOAD, 1)
    assert value(table, "nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type=kind) == expected


def test_the_reading_is_dated(gauges, table):
    """The gauges contain the time and the iteration counter."""
    gauges.set(LOAD, 123)
    assert value(table, "nv_trt_llm_general_metrics", general_type="timestamp") == 123
    assert value(table, "nv_trt_llm_general_metrics", general_type="iteration_counter") == 9


@pytest.mark.parametrize(
    ("position", "last", "expected"),
    [(0, False, [0, 40, 32]), (0, True, [1, 40, 32]), (3, False, [0, 0, 0]), (3, True, [1, 0, 0])],
)
def test_tokens_are_counted_at_the_first_and_the_request_at_the_last(
    gauges, table, position, last, expected
):
    """Nothing is counted twice, whatever a request's length."""
    gauges.count(Token(1, "v2: ", position, last, 40, 32))
    counters = ("requests", "prompt_tokens", "reused_tokens")
    assert [value(table, f"toy_llm_{name}_total") for name in counters] == expected
