"""What a replica's index and metrics mean for a load or an unload."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.applications.loading.machine import ReplicaFinding
from xds_server.applications.loading.plan import (
    MIB,
    Answered,
    FreeMemory,
    RepositoryEntry,
    RepositoryIndexError,
    answered,
    free_memory,
    model_in,
    plan_of,
    since,
    takes_last,
)

RECORDED = Path(__file__).parents[4] / "contract" / "fixtures" / "triton-2.51.0"
ABSENT = RepositoryEntry(known=True, ready=frozenset(), in_use=False)
READY = RepositoryEntry(known=True, ready=frozenset({"1"}), in_use=True)
UNKNOWN = RepositoryEntry(known=False, ready=frozenset(), in_use=False)
GPUS = """
nv_gpu_memory_total_bytes{gpu_uuid="a"} 1000
nv_gpu_memory_used_bytes{gpu_uuid="a"} 900
nv_gpu_memory_total_bytes{gpu_uuid="b"} 1e3
nv_gpu_memory_used_bytes{gpu_uuid="b"} 400
nv_cpu_memory_total_bytes 9000
nv_cpu_memory_used_bytes 0
"""


def test_a_recorded_index_says_which_versions_are_ready() -> None:
    """A name without a state is in the repository and was never loaded."""
    index = json.loads((RECORDED / "placement.json").read_bytes())["index"]["text"].encode()
    assert model_in(index, "loaded") == READY
    assert model_in(index, "never") == model_in(index, "unloaded") == ABSENT
    assert model_in(index, "other") == UNKNOWN


@pytest.mark.parametrize("index", [b"", b"{}", b"[1]", b"[" * 100_000])
def test_what_is_no_index_is_an_error(index: bytes) -> None:
    """It does not say that the model is absent."""
    with pytest.raises(RepositoryIndexError):
        model_in(index, "m")


def test_the_emptiest_gpu_counts_and_the_host_without_one() -> None:
    """A model is on one of them at least; a CPU-only server has host memory alone."""
    assert free_memory(GPUS) == FreeMemory("GPU", 600)
    recorded = (RECORDED / "metrics.txt").read_text()
    assert free_memory(recorded) == FreeMemory("host", 25276502016 - 482926592)


@pytest.mark.parametrize(
    "page",
    [
        "",
        "nv_gpu_memory_total_bytes 5",
        "nv_cpu_memory_total_bytes NaN\nnv_cpu_memory_used_bytes 0",
        "nv_cpu_memory_total_bytes 0\nnv_cpu_memory_used_bytes 0",
        "nv_cpu_memory_total_bytes x\nnv_cpu_memory_used_bytes 0",
    ],
)
def test_memory_that_is_not_shown_is_unknown(page: str) -> None:
    """Unknown is not 0, which would refuse every load."""
    assert free_memory(page) is None


@pytest.mark.parametrize(
    ("kind", "version", "state", "memory", "needed", "plan", "refused"),
    [
        ("load", "", ABSENT, None, 0, "change", False),
        ("load", "", READY, None, 0, "keep", False),
        ("load", "1", READY, None, 0, "keep", False),
        ("load", "2", READY, None, 0, "reload", False),
        ("load", "", UNKNOWN, None, 0, "keep", True),
        ("load", "", ABSENT, None, 5, "change", False),
        ("load", "", ABSENT, FreeMemory("GPU", 5 * MIB), 5, "change", False),
        ("load", "", ABSENT, FreeMemory("GPU", 5 * MIB - 1), 5, "keep", True),
        ("load", "", READY, FreeMemory("GPU", 0), 5, "keep", False),
        ("load", "", ABSENT._replace(in_use=True), FreeMemory("GPU", 0), 5, "change", False),
        ("unload", "", READY, None, 0, "change", False),
        ("unload", "", ABSENT, None, 0, "keep", False),
        ("unload", "", ABSENT._replace(in_use=True), None, 0, "change", False),
    ],
)
def test_the_plan_of_a_replica(
    kind: Any,
    version: str,
    state: RepositoryEntry,
    memory: FreeMemory | None,
    needed: int,
    plan: str,
    refused: bool,
) -> None:
    """What is there stays, what is missing is loaded if it fits."""
    found: ReplicaFinding = plan_of(kind, version, state, memory, needed)
    assert (found.plan, bool(found.refusal)) == (plan, refused)


def test_an_unload_must_leave_a_replica_with_the_model() -> None:
    """One that takes requests; where none has it anyway, nothing is lost."""
    both = {"r1": READY, "r2": READY}
    every = frozenset({"r1", "r2"})
    assert takes_last(both, every, frozenset({"r1"})) == ""
    assert takes_last(both, every, every).startswith("r1, r2 would be the last")
    assert takes_last(both, frozenset({"r1"}), frozenset({"r1"})) != ""
    assert takes_last(both | {"r1": ABSENT}, every, frozenset({"r1"})) == ""
    assert takes_last(both, frozenset({"r2"}), frozenset({"r1"})) == ""


@given(
    st.binary()
    | st.text().map(str.encode)
    | st.lists(
        st.dictionaries(
            st.sampled_from(["name", "version", "state"]), st.text() | st.none() | st.integers()
        )
    ).map(lambda rows: json.dumps(rows).encode())
)
def test_hostile_answers_are_read_or_refused(answer: bytes) -> None:
    """A replica may answer anything."""
    with contextlib.suppress(RepositoryIndexError):
        model_in(answer, "m")
    free_memory(answer.decode(errors="replace"))
    with contextlib.suppress(ValueError):
        answered(answer)


def test_statistics_are_summed_over_versions() -> None:
    """Of an answer recorded from Triton 2.51; what is no count is refused as a whole."""
    told = json.loads((RECORDED / "model_stats.json").read_text())
    assert answered(json.dumps(told).encode()) == Answered(3, 0, 3, 50579267)
    (row,) = told["model_stats"]
    told["model_stats"].append(row)
    assert answered(json.dumps(told).encode()) == Answered(6, 0, 6, 2 * 50579267)
    for wrong in (-1, 0.5, True, "3", None):
        row["inference_stats"]["fail"]["count"] = wrong
        with pytest.raises(ValueError, match="no count"):
            answered(json.dumps(told).encode())


def test_counts_since_an_earlier_answer_are_differences() -> None:
    """A count that fell is that of a new process."""
    assert since(None, Answered(5, 1)) == Answered()
    assert since(Answered(5, 1, 5, 50), Answered(7, 1, 7, 80)) == Answered(2, 0, 2, 30)
    assert since(Answered(5, 1, 5, 50), Answered(7, 0, 7, 80)) == Answered(7, 0, 7, 80)
