"""Merged repository indexes."""

from __future__ import annotations

import pytest

from gateway.merge import index
from gateway.merge.index import MAX_ENTRIES, MAX_TEXT, UnreadableIndexError, entries_of, merged


def rows(*found: tuple[str, str, str, str]) -> list[index.IndexEntry]:
    """Return entries of (name, version, state, reason)."""
    keys = ("name", "version", "state", "reason")
    return entries_of([dict(zip(keys, each, strict=True)) for each in found])


def nobody(_: str) -> list[str]:
    """Expect a model nowhere."""
    return []


def test_what_all_agree_on_is_as_one_server_says_it():
    """No field, no reason is added."""
    one = rows(("m", "1", "READY", ""), ("n", "2", "UNAVAILABLE", "unloaded"))
    found = index.rows_of(merged({"r1": one, "r2": one}, lambda _: ["r1", "r2"]), ready=False)
    assert found == [
        {"name": "m", "version": "1", "state": "READY"},
        {"name": "n", "version": "2", "state": "UNAVAILABLE", "reason": "unloaded"},
    ]


def test_the_best_state_counts_and_the_others_are_named():
    """A model that one replica serves can be served."""
    found = merged(
        {
            "r1": rows(("m", "1", "UNAVAILABLE", "no memory")),
            "r2": rows(("m", "1", "READY", "")),
            "r3": rows(("m", "1", "LOADING", "")),
        },
        nobody,
    )
    (row,) = index.rows_of(found, ready=False)
    assert (row["state"], row["reason"]) == ("READY", "r1 UNAVAILABLE (no memory); r3 LOADING")
    assert row["replicas"] == {
        "r1": {"state": "UNAVAILABLE", "reason": "no memory"},
        "r2": {"state": "READY"},
        "r3": {"state": "LOADING"},
    }


def test_absent_and_unknown_are_different():
    """A replica that does not answer may have the model."""
    found = merged(
        {"r1": rows(("m", "1", "READY", "")), "r2": rows(), "r3": None},
        lambda _: ["r1", "r2", "r3"],
    )
    assert found[0].reason == "r2 absent; r3 unknown"


def test_a_replica_of_another_pool_is_not_named():
    """It need not have the model."""
    (entry,) = merged({"r1": rows(("m", "1", "READY", "")), "r2": rows()}, lambda _: ["r1"])
    assert (entry.reason, dict(entry.replicas)) == ("", {})


def test_a_model_that_was_never_loaded_has_no_version():
    """Beside versions of other replicas it is told as not loaded."""
    loaded, never = rows(("m", "1", "READY", "")), rows(("m", "", "", ""))
    (entry,) = merged({"r1": loaded, "r2": never}, nobody)
    assert (entry.version, entry.state, entry.reason) == ("1", "READY", "r2 not loaded")
    assert index.rows_of(merged({"r2": never}, nobody), ready=False) == [{"name": "m"}]


def test_only_the_ready_ones_if_asked_for():
    """As Triton's own filter."""
    one = rows(("m", "1", "READY", ""), ("n", "1", "UNAVAILABLE", ""))
    assert [row["name"] for row in index.rows_of(merged({"r": one}, nobody), ready=True)] == ["m"]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        [1],
        [{"version": "1"}],
        [{"name": 3}],
        [{"name": "m", "state": ["READY"]}],
        [{"name": "m" * 2000}],
        [{"name": "m"}] * (MAX_ENTRIES + 1),
    ],
    ids=range(7),
)
def test_what_is_no_index_is_refused(answer: object):
    """As a whole: half of an index would be a wrong one."""
    with pytest.raises(UnreadableIndexError):
        entries_of(answer)


def test_text_and_number_are_bounded():
    """Whatever replicas write."""
    (entry,) = entries_of([{"name": "m", "reason": "x" * 10_000}])
    assert len(entry.reason) == MAX_TEXT
    many = {
        f"r{n}": [index.IndexEntry(f"{n}-{m}", "1", "READY") for m in range(MAX_ENTRIES // 2)]
        for n in range(3)
    }
    assert len(merged(many, nobody)) == MAX_ENTRIES
    differing = {
        f"r{n}": rows(("m", "1", "LOADING" if n else "READY", "y" * 900)) for n in range(9)
    }
    assert len(merged(differing, nobody)[0].reason) <= MAX_TEXT
