"""Sums of statistics."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.values.pool import EndpointKey
from gateway.merge import statistics
from gateway.merge.statistics import MAX_COUNT, StatisticsBook, StatisticsError, rows_of

FIXTURES = Path(__file__).resolve().parents[3] / "contract" / "fixtures" / "triton-2.51.0"
RECORDED = orjson.loads((FIXTURES / "model_stats.json").read_bytes())
R1, R2 = EndpointKey("r1", 1), EndpointKey("r2", 1)
POOL = frozenset({"p"})


def row(count: int, name: str = "m", version: str = "1", **more: Any) -> dict[str, Any]:
    """Return a row with as many inferences."""
    return {
        "name": name,
        "version": version,
        "last_inference": 1000 + count,
        "inference_count": count,
        "execution_count": count,
        "inference_stats": {"success": {"count": count, "ns": 10 * count}},
        **more,
    }


def summed(book: StatisticsBook, said: dict[EndpointKey, Any], *here: EndpointKey) -> Any:
    """Take answers of replicas and return the sums; replicas that are not ``here`` have left."""
    for key, rows in said.items():
        book.take(key, POOL, rows)
    return book.sums(said, lambda key, pools: key in (here or said) or not POOL.isdisjoint(pools))


def test_the_sum_of_one_replica_is_what_it_says():
    """Byte for byte: a client sees no difference to one Triton."""
    (total,) = summed(StatisticsBook(), {R1: rows_of(copy.deepcopy(RECORDED))})
    assert total == RECORDED["model_stats"][0]
    assert list(total) == list(RECORDED["model_stats"][0])


def test_counts_add_up_and_the_latest_use_counts():
    """Over replicas, in nested counts too."""
    (total,) = summed(StatisticsBook(), {R1: [row(3)], R2: [row(5)]})
    assert total["inference_count"] == 8
    assert total["inference_stats"]["success"] == {"count": 8, "ns": 80}
    assert total["last_inference"] == 1005


def test_batches_add_up_by_their_size():
    """Batches of sizes that only one replica has stay."""
    one = row(1, batch_stats=[{"batch_size": 1, "compute_infer": {"count": 2, "ns": 5}}])
    two = row(
        1,
        batch_stats=[
            {"batch_size": 4, "compute_infer": {"count": 1, "ns": 1}},
            {"batch_size": 1, "compute_infer": {"count": 3, "ns": 5}},
        ],
    )
    (total,) = summed(StatisticsBook(), {R1: [one], R2: [two]})
    assert total["batch_stats"] == [
        {"batch_size": 1, "compute_infer": {"count": 5, "ns": 10}},
        {"batch_size": 4, "compute_infer": {"count": 1, "ns": 1}},
    ]


def test_memory_is_that_of_now():
    """It is no count: a replica that restarted uses its memory once."""
    usage = [{"type": "GPU", "id": 0, "byte_size": 7}]
    book = StatisticsBook()
    summed(book, {R1: [row(9, memory_usage=usage)], R2: [row(9, memory_usage=usage)]})
    (total,) = summed(book, {R1: [row(1, memory_usage=usage)]}, R1, R2)
    assert total["memory_usage"] == usage


def test_a_restart_does_not_lower_a_sum():
    """What was counted before stays; a client subtracts two sums."""
    book = StatisticsBook()
    summed(book, {R1: [row(100)], R2: [row(50)]})
    (total,) = summed(book, {R1: [row(2)], R2: [row(50)]})
    assert total["inference_count"] == 152
    (total,) = summed(book, {R1: [row(3)], R2: [row(50)]})
    assert total["inference_count"] == 153


def test_a_silent_replica_counts_with_what_it_said():
    """A difference of two sums is then too small, never negative."""
    book = StatisticsBook()
    summed(book, {R1: [row(100)], R2: [row(50)]})
    (total,) = summed(book, {R2: [row(60)]}, R1, R2)
    assert total["inference_count"] == 160


def test_a_model_that_nobody_has_now_is_not_listed():
    """As one Triton lists what is loaded."""
    book = StatisticsBook()
    summed(book, {R1: [row(1), row(1, "n")]})
    assert [each["name"] for each in summed(book, {R1: [row(1)]})] == ["m"]


def test_a_replica_out_of_sight_does_not_count():
    """What a host may not see is not in its sums."""
    book = StatisticsBook()
    book.take(R1, frozenset({"p"}), [row(1)])
    book.take(R2, frozenset({"q"}), [row(5)])
    (total,) = book.sums({R1: [row(1)]}, lambda key, pools: key == R1 or "p" in pools)
    assert total["inference_count"] == 1


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {"model_stats": {}},
        {"model_stats": [3]},
        {"model_stats": [{"version": "1"}]},
        {"model_stats": [{"name": 1}]},
        {"model_stats": [row(-1)]},
        {"model_stats": [row(1, inference_count=1.5)]},
        {"model_stats": [row(1, inference_count=True)]},
        {"model_stats": [row(1, inference_count=2**64)]},
        {"model_stats": [row(1, inference_count={"a": 1})]},
        {"model_stats": [row(1, inference_stats=3)]},
        {"model_stats": [row(1, inference_stats={"success": 3})]},
        {"model_stats": [row(1, batch_stats=[3])]},
        {"model_stats": [row(1, batch_stats=[{"batch_size": {}}])]},
        {"model_stats": [row(1, memory_usage=[{"type": 3}])]},
        {"model_stats": [row(1, more={"a": {"b": {"c": {"d": {"e": 1}}}}})]},
        {"model_stats": [row(1, more={str(n): n for n in range(5000)})]},
        {"model_stats": [row(1)] * 10_001},
        {"model_stats": [row(1, "m" * 2000)]},
    ],
    ids=range(19),
)
def test_what_is_no_statistics_is_refused(answer: Any):
    """As a whole: a count that is half wrong is wrong."""
    with pytest.raises(StatisticsError):
        rows_of(answer)


def test_numbers_as_text_are_numbers():
    """Protobuf's JSON writes large ones so."""
    (read,) = rows_of({"model_stats": [{"name": "7", "version": "1", "inference_count": "12"}]})
    assert read == {"name": "7", "version": "1", "inference_count": 12}


def test_sums_stop_at_the_largest_number():
    """Replicas that lie cannot make an answer that cannot be written."""
    (total,) = summed(StatisticsBook(), {R1: [row(MAX_COUNT // 2)], R2: [row(MAX_COUNT)]})
    assert total["inference_count"] == MAX_COUNT


def test_rows_are_bounded(monkeypatch: pytest.MonkeyPatch):
    """The models that nobody asked for longest go first."""
    monkeypatch.setattr(statistics, "MAX_HELD", 4)
    book = StatisticsBook()
    for name in "abc":
        summed(book, {R1: [row(1, name)], R2: [row(1, name)]})
    assert book.rows == 4
    (total,) = summed(book, {R1: [row(1, "a")]}, R1, R2)
    assert total["inference_count"] == 1  # that of r2 is forgotten
    (total,) = summed(book, {R1: [row(1, "c")]}, R1, R2)
    assert total["inference_count"] == 2


STEPS = st.lists(
    st.tuples(st.sampled_from([R1, R2]), st.integers(0, 20), st.booleans(), st.booleans()),
    max_size=30,
)


@given(STEPS)
def test_sums_never_fall(steps: list[tuple[EndpointKey, int, bool, bool]]):
    """Whatever replicas count, and however often they restart or are silent."""
    book, counts, last, real = StatisticsBook(), {R1: 0, R2: 0}, 0, 0
    for replica, more, restarts, silent in steps:
        counts[replica] = more if restarts else counts[replica] + more
        real += more
        said = {key: [row(counts[key])] for key in (R1, R2) if not (silent and key == replica)}
        (total,) = summed(book, said, R1, R2)
        assert last <= total["inference_count"] <= real
        last = total["inference_count"]
