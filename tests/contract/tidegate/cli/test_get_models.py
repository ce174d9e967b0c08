"""``get models``: which replica has which model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tidegate_api.admin.v1 import admin_pb2 as api

if TYPE_CHECKING:
    from support.command_line import FakeAdmin, Run


def told(admin: FakeAdmin, replicas: int) -> FakeAdmin:
    """Let the admin API tell of one model on so many replicas."""

    def models(_self: Any, _request: Any, _context: Any) -> api.GetModelsResponse:
        one = {"pool": "many", "model": "ocr", "version": "2"}
        rows = [
            api.PlacedModel(**one, endpoint="r1", state="READY", for_seconds=3, age_seconds=0.5)
        ]
        rows.append(
            api.PlacedModel(**one, endpoint="r2", state="UNAVAILABLE", reason="[red]unloaded")
        )
        rows += [api.PlacedModel(**one, endpoint=f"r{n}") for n in range(3, replicas + 1)]
        return api.GetModelsResponse(models=rows)

    admin.calls["GetModels"] = models
    return admin


def test_a_matrix_has_a_column_per_replica(run: Run, admin: FakeAdmin) -> None:
    """The reason is shown as the replica says it; what is not known says so."""
    lines = run("get", "models", "--server", told(admin, 3).address).out.splitlines()
    assert lines[0].split() == ["pool", "model", "version", "ready", "r1", "r2", "r3"]
    text = " ".join(" ".join(lines[1:]).split())
    assert text == "many ocr 2 1 of 3 READY UNAVAILABLE: [red]unloaded unknown"


def test_many_replicas_share_a_column(run: Run, admin: FakeAdmin) -> None:
    """A table has no room for hundreds of columns."""
    out = " ".join(run("get", "models", "--server", told(admin, 12).address).out.split())
    assert out.startswith("pool model version ready replicas many ocr 2 1 of 12 r1 READY")


def test_rows_have_ages(run: Run, admin: FakeAdmin) -> None:
    """What is not known is null."""
    out = run("get", "models", "--server", told(admin, 3).address, "-o", "json").out
    first, _, last = json.loads(out)
    assert first == {
        "pool": "many",
        "model": "ocr",
        "version": "2",
        "endpoint": "r1",
        "state": "READY",
        "reason": None,
        "for_seconds": 3.0,
        "age_seconds": 0.5,
    }
    assert (last["state"], last["for_seconds"], last["age_seconds"]) == (None, None, None)
