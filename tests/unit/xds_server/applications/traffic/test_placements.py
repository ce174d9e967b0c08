"""Which replica has which model, merged from the reports of pickers."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate_api.fleet.v1 import report_pb2 as pb
from xds_server.applications.traffic import placements as module
from xds_server.applications.traffic.placements import (
    LEFT_S,
    STALE_S,
    PlacedState,
    PlacementBook,
    ReplicaModels,
    VersionedReplica,
    shown,
    unlike_versions,
)
from xds_server.applications.traffic.reading import MAX_ROWS, ReportError, read_placements

READY = PlacedState("READY", "", 4.0)
LOADING = PlacedState("LOADING", "", 1.0)


def replica(age_s: float = 0.0, *, whole: bool = True, **models: PlacedState) -> ReplicaModels:
    """Return what a replica has, in version 1."""
    return ReplicaModels(age_s, whole, {(name, "1"): state for name, state in models.items()})


def test_the_latest_look_at_a_replica_counts() -> None:
    """Whichever picker made it; what is too old, or of a picker that is gone, is unknown."""
    now = [100.0]
    book = PlacementBook(lambda: now[0])
    book.take("p1", {"r1": replica(3.0, a=READY), "r2": replica(1.0)})
    now[0] += 5.0
    book.take("p2", {"r1": replica(6.0, a=LOADING)})
    assert book.merged() == {"r1": replica(6.0, a=LOADING), "r2": replica(6.0)}
    book.gone("p2")
    assert book.merged()["r1"] == replica(8.0, a=READY)
    now[0] += STALE_S - 7.0
    assert set(book.merged()) == {"r2"}


def test_envoys_are_told_what_pickers_found_before_they_left() -> None:
    """The newest look of all, for some minutes; operators are shown connected pickers' only."""
    now = [100.0]
    book = PlacementBook(lambda: now[0])
    book.take("p1", {"r1": replica(1.0, a=READY), "r2": replica(2.0)})
    book.take("p2", {"r1": replica(3.0, a=LOADING)})
    book.gone("p1")
    book.gone("p2")
    now[0] += 10.0
    assert book.merged() == {}
    assert book.last() == {"r1": replica(11.0, a=READY), "r2": replica(12.0)}
    book.take("p2", {"r1": replica(0.0, b=READY)})
    assert book.last()["r1"] == replica(0.0, b=READY)
    now[0] += LEFT_S - 11.0
    assert book.last() == {"r1": replica(LEFT_S - 11.0, b=READY)}
    book.gone("p3")


def test_what_gone_pickers_found_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number of replicas; those of the picker that left first go first."""
    monkeypatch.setattr(module, "MAX_LEFT", 2)
    book = PlacementBook(lambda: 0.0)
    for number in range(4):
        book.take(f"p{number}", {f"r{number}": replica()})
        book.gone(f"p{number}")
    assert set(book.last()) == {"r2", "r3"}


def test_a_pool_shows_its_models_on_all_of_its_replicas() -> None:
    """Absent, unknown, and never loaded are told apart."""
    unloaded = PlacedState("UNAVAILABLE", "not loaded", 9.0)
    replicas = {
        "r1": replica(1.0, a=READY, other=READY),
        "r2": ReplicaModels(2.0, whole=True, models={("a", ""): unloaded}),
        "r3": replica(3.0),
        "r4": replica(4.0, whole=False),
    }
    found = list(shown(replicas, ["r5", "r4", "r3", "r2", "r1"], ["a", "z"]))
    rows = [(each.model, each.version, each.endpoint, each.state.state) for each in found]
    assert rows[:5] == [
        ("a", "1", "r1", "READY"),
        ("a", "1", "r2", "UNAVAILABLE"),
        ("a", "1", "r3", "UNAVAILABLE"),
        ("a", "1", "r4", ""),
        ("a", "1", "r5", ""),
    ]
    assert [row[1:] for row in rows[5:]] == [
        ("", "r1", "UNAVAILABLE"),
        ("", "r2", "UNAVAILABLE"),
        ("", "r3", "UNAVAILABLE"),
        ("", "r4", ""),
        ("", "r5", ""),
    ]
    assert [each.state.reason for each in found[:3]] == ["", "not loaded", "not listed"]
    assert found[4].age_s is None
    assert {each.model for each in shown(replicas, ["r1"], [])} == {"a", "other"}


def test_the_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many models on many replicas are cut."""
    monkeypatch.setattr(module, "MAX_SHOWN", 3)
    assert len(list(shown({"r1": replica(a=READY)}, ["r1", "r2"], ["a", "b"]))) == 3


def message(**changes: Any) -> pb.Placements:
    """Return a report of one row."""
    row = {"model": "m", "version": "1", "state": "READY", "reason": "", "for_ms": 1500}
    models = [pb.ModelPlacement(**{**row, **changes})]
    return pb.Placements(
        replicas=[pb.ReplicaModels(id="r1", age_ms=250, whole=True, models=models)]
    )


def test_a_report_is_read() -> None:
    """Texts of replicas may have any characters; what is shown may not."""
    state = PlacedState("READY", "a b", 1.5)
    found = read_placements(message(reason="a\nb"))
    assert found == {"r1": ReplicaModels(0.25, whole=True, models={("m", "1"): state})}


@pytest.mark.parametrize(
    "changes",
    [{"state": "x"}, {"model": "m" * 257}, {"reason": "m" * 257}, {"for_ms": 2**60}],
)
def test_a_report_that_breaks_a_bound_is_refused(changes: dict[str, Any]) -> None:
    """Nothing of it is kept."""
    with pytest.raises(ReportError):
        read_placements(message(**changes))


def test_a_report_has_a_bound_on_its_rows() -> None:
    """A picker that lies may not fill the memory."""
    row = pb.ModelPlacement(model="m", state="READY")
    many = pb.Placements(replicas=[pb.ReplicaModels(id="r1", models=[row] * (MAX_ROWS + 1))])
    with pytest.raises(ReportError, match="rows"):
        read_placements(many)
    names = pb.Placements(replicas=[pb.ReplicaModels(id="r\n1")])
    with pytest.raises(ReportError):
        read_placements(names)


def versions(*ready: str, loading: str = "", moved: int = 0) -> ReplicaModels:
    """Return what a replica has of the model ``a``."""
    models = {("a", each): READY for each in ready}
    if loading:
        models["a", loading] = LOADING
    return ReplicaModels(0.0, True, models, moved)


@pytest.mark.parametrize(
    ("wanted", "grpc", "found", "words"),
    [
        (None, True, [versions("1"), versions("1"), versions()], []),
        (None, True, [versions("1"), versions("9", "10")], ["by different versions: r1 1, r2 10"]),
        (None, True, [versions("1", loading="2"), versions("1"), versions("")], []),
        ("1", True, [versions("1"), versions("1")], []),
        ("1", True, [versions("1"), versions("1", "2")], ["answer by another: r2 2"]),
        ("1", False, [versions("1"), versions("1", "2")], []),
        (
            "1",
            False,
            [versions("1"), versions("2", moved=7)],
            ["r2 2; at most 7 requests"],
        ),
    ],
)
def test_replicas_that_answer_by_another_version_are_told(
    wanted: str | None, grpc: bool, found: list[ReplicaModels], words: list[str]
) -> None:
    """Than the variant's, or than each other; over HTTP alone Envoy names the version."""
    replicas = [VersionedReplica(f"r{n}", grpc, each) for n, each in enumerate(found, 1)]
    told = list(unlike_versions("pool llm, variant v", wanted, replicas, ("a", "b")))
    assert len(told) == len(words)
    for sentence, part in zip(told, words, strict=True):
        assert sentence.startswith("pool llm, variant v: model a is")
        assert part in sentence
    assert list(unlike_versions("x", wanted, replicas, ("b",))) == []


def test_as_many_replicas_as_fit_into_a_sentence_are_named() -> None:
    """The others are counted."""
    replicas = [VersionedReplica(f"r{n:02}", True, versions(str(1 + n))) for n in range(12)]
    (told,) = unlike_versions("x", None, replicas, ())
    assert told.endswith("r07 8 and 4 more")


def test_moved_requests_add_up_over_pickers() -> None:
    """Each has counted its own, whoever looked last."""
    book = PlacementBook(lambda: 1.0)
    book.take("p1", {"r1": versions("1", moved=2)})
    book.take("p2", {"r1": versions("1", moved=3)})
    assert book.merged()["r1"].moved == 5
